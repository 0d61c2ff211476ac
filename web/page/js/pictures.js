// Pictures of jobs. They are fetched with the key and shown as blob: addresses.
import {api, jobPath} from './api.js';
import {element} from './dom.js';

/// As the job's request said, or in another format: png | jpeg | webp | webm | mp4.
export function picturePath(id, number, format = '') {
  return `${jobPath(id)}/pictures/${number}${format && `?format=${format}`}`;
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

/// Lets the browser save a picture under a name, to which its kind's ending is added.
export async function save(path, name) {
  const blob = await api.blob(path);
  const url = URL.createObjectURL(blob);
  element('a', {href: url, download: `${name}.${blob.type.split('/')[1] ?? 'png'}`}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/// The request that made the picture in `blob`, a PNG of Troupe. A picture that it began with must
/// stand in the form.
export async function parametersOf(blob) {
  const brought = ['init_image', 'mask_image', 'images', 'last_image', 'control_images'].filter((name) => document.getElementById(`field-${name}`)?.files?.length > 0);
  return api.post(`/api/v1/parameters${brought.length ? `?bring=${brought}` : ''}`, blob.type === 'image/png' ? blob : new Blob([blob], {type: 'image/png'}));
}
