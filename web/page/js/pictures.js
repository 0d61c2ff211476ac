// Pictures of jobs. They are fetched with the key and shown as blob: addresses.
import {api, jobPath} from './api.js';
import {element} from './dom.js';

export function picturePath(id, number, thumbnail = false) {
  return `${jobPath(id)}/pictures/${number}${thumbnail ? '?format=jpeg&quality=75' : ''}`;
}

/// An <img> that shows what `path` holds once it has come; while it has not, its `alt`.
export function picture(path, properties) {
  const image = element('img', properties);
  api.blob(path).then((blob) => showBlob(image, blob), () => image.removeAttribute('src'));
  return image;
}

export function showBlob(image, blob) {
  const url = URL.createObjectURL(blob);
  const release = () => URL.revokeObjectURL(url);
  image.addEventListener('load', release, {once: true});
  image.addEventListener('error', release, {once: true});
  image.src = url;
}

/// Lets the browser save a picture under a name.
export async function save(path, name) {
  const url = URL.createObjectURL(await api.blob(path));
  element('a', {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/// The request that made the picture in `blob`, a PNG of Troupe.
export async function parametersOf(blob) {
  return api.post('/api/v1/parameters', blob.type === 'image/png' ? blob : new Blob([blob], {type: 'image/png'}));
}
