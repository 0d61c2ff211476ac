// What this browser remembers: the key, the theme, and the ids of the jobs that it asked for. All else is the server's.

const kMostJobs = 500;

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`troupe.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(`troupe.${name}`, JSON.stringify(value));
  } catch {
    // Private windows may have no storage: the page works, and forgets at a reload.
  }
}

export const store = {
  key: () => read('key', ''),
  setKey: (key) => write('key', key),
  theme: () => read('theme', 'auto'),
  setTheme: (theme) => write('theme', theme),
  /// Newest first.
  jobs: () => {
    const ids = read('jobs', []);
    return Array.isArray(ids) ? ids.map(String) : [];
  },
  addJob: (id) => write('jobs', [id, ...store.jobs().filter((other) => other !== id)].slice(0, kMostJobs)),
  removeJob: (id) => write('jobs', store.jobs().filter((other) => other !== id)),
};
