// What this browser remembers: the key, the theme, the jobs that it asked for, with what it asked, and those that it
// cancelled; of each tab what stands in its form. All else is the server's.

const kMostJobs = 500;

// `storage` names a property of window: reading it may fail, too.
function read(name, otherwise, storage = 'localStorage') {
  try {
    return JSON.parse(window[storage].getItem(`troupe.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(name, value, storage = 'localStorage') {
  try {
    window[storage].setItem(`troupe.${name}`, JSON.stringify(value));
  } catch {
    // Private windows may have no storage: the page works, and forgets at a reload.
  }
}

export const store = {
  key: () => read('key', ''),
  setKey: (key) => write('key', key),
  theme: () => read('theme', 'auto'),
  setTheme: (theme) => write('theme', theme),
  form: () => read('form', {}, 'sessionStorage'),
  setForm: (values) => write('form', values, 'sessionStorage'),
  /// Newest first.
  jobs: () => {
    const ids = read('jobs', []);
    return Array.isArray(ids) ? ids.map(String) : [];
  },
  /// What a job was asked for, without pictures; undefined where this browser did not ask.
  request: (id) => read('requests', {})[id],
  addJob: (id, {init_image: image, mask_image: mask, images, last_image: last, control_images: controls, ...request}) => {
    const ids = [id, ...store.jobs().filter((other) => other !== id)].slice(0, kMostJobs);
    const kept = {...read('requests', {}), [id]: request};
    write('jobs', ids);
    write('requests', Object.fromEntries(ids.filter((one) => kept[one]).map((one) => [one, kept[one]])));
  },
  removeJob: (id) => {
    const {[id]: gone, ...kept} = read('requests', {});
    write('jobs', store.jobs().filter((other) => other !== id));
    write('requests', kept);
  },
  hasCancelled: (id) => read('cancelled', []).includes(id),
  addCancelled: (id) => write('cancelled', [id, ...read('cancelled', [])].slice(0, kMostJobs)),
  removeCancelled: (id) => write('cancelled', read('cancelled', []).filter((other) => other !== id)),
};
