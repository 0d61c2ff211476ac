// Shows one view at a time, by the part of the address after "#", and what is true of all views: the theme, whether the
// server is there, and the question for a key.
import {ApiError, api, apiEvents, every} from './api.js';
import {element, fill, say} from './dom.js';
import {store} from './store.js';
import {paintView} from './paint.js';
import {clusterView} from './cluster.js';
import {jobsView} from './jobs.js';
import {jobView} from './job.js';
import {metricsView, watchMetrics} from './metrics.js';
import {learnWords, wordsAreKnown} from './words.js';

const views = {
  paint: {title: 'Paint', show: paintView},
  cluster: {title: 'Cluster', show: clusterView},
  jobs: {title: 'Jobs', show: (place, id) => (id ? jobView(place, id) : jobsView(place))},
  metrics: {title: 'Metrics', show: metricsView},
};

/// Each view fills a place and returns how it is left: it ends its streams and timers.
let leave = () => {};

function showView() {
  const [name, ...rest] = location.hash.slice(1).split('/');
  const chosen = Object.hasOwn(views, name) ? name : 'paint';
  const id = rest.length > 0 ? decodeURIComponent(rest.join('/')) : '';
  leave();
  const place = document.getElementById('view');
  fill(place);
  place.className = chosen;
  document.title = `${views[chosen].title}${id ? ` ${id}` : ''} · Troupe`;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${chosen}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (chosen !== 'paint' && !wordsAreKnown()) askForWords();
  leave = views[chosen].show(place, id);
}

/// The paint view learns them with its form.
async function askForWords() {
  try {
    learnWords(await api.json('/api/v1/options'));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;  // texts are shown as they come, then
  }
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  store.setTheme(theme);
  window.dispatchEvent(new Event('themechange'));
}

// What the server says of itself, in the user's words; "" = all is well.
const connection = {reached: true, health: ''};

function showConnection() {
  const bar = document.getElementById('connection');
  say(bar, connection.reached ? connection.health
    : 'Connection lost. Trying again; jobs that were accepted go on without this page.');
  bar.hidden = bar.textContent === '';
}

async function watchHealth() {
  try {
    const {status} = await api.json('/health');
    connection.health = {starting: 'Troupe is starting: jobs wait until its actors are ready.',
                         degraded: 'Some actors are missing; Troupe is replacing them.'}[status] ?? '';
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 503)
      connection.health = 'Nothing can be painted now: the server answers, but its cluster does not.';
  }
  showConnection();
}

function askForKey() {
  if (document.getElementById('key')) return;
  const input = element('input', {type: 'password', name: 'key', required: true, autocomplete: 'current-password',
                                  id: 'key-field'});
  const dialog = element('dialog', {id: 'key', 'aria-labelledby': 'key-title'},
    element('form', {method: 'dialog'},
      element('h2', {id: 'key-title'}, 'This server asks for a key'),
      element('p', {}, store.key() ? 'The key that this browser remembers is not accepted.'
        : 'Whoever started the server has it. This browser will remember it.'),
      element('label', {for: 'key-field'}, 'Key'), input,
      element('div', {class: 'row'}, element('button', {class: 'main'}, 'Use this key'))));
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (!input.value) return;
    store.setKey(input.value.trim());
    showView();
  });
  document.body.append(dialog);
  dialog.showModal();
}

apiEvents.addEventListener('connection', ({detail}) => {
  connection.reached = detail;
  showConnection();
});
apiEvents.addEventListener('key', askForKey);
const theme = document.getElementById('theme');
theme.value = store.theme();
theme.addEventListener('change', () => applyTheme(theme.value));
applyTheme(theme.value);
window.addEventListener('hashchange', () => {
  showView();
  document.getElementById('view').focus();
});
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  document.getElementById('view').focus();
});
every(3, watchHealth);
watchMetrics();
showView();
