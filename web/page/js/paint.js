// The view that paints: form, picture, and what this browser asked for before. They live as long as the page, so that a
// prompt is not lost when somebody looks at another view.
import {ApiError, api} from './api.js';
import {element, fill, say} from './dom.js';
import {RequestForm} from './form.js';
import {Gallery} from './gallery.js';
import {parametersOf} from './pictures.js';
import {Stage} from './stage.js';
import {store} from './store.js';
import {learnWords} from './words.js';

const side = element('section', {class: 'panel settings', 'aria-label': 'Settings'});
const note = element('p', {class: 'small', role: 'status'});
const gallery = new Gallery(choose);
const stage = new Stage({onJob: (job) => gallery.take(job), onSettings: takeSettings, onForget: forget});
let form = null;
let chosen = store.jobs()[0] ?? null;

function choose(id) {
  chosen = id;
  gallery.choose(id);
  stage.show(id);
}

function forget(id) {
  store.removeJob(id);
  choose(store.jobs()[0] ?? null);
}

async function paint(request) {
  const {id} = await api.post('/api/v1/jobs', request);
  store.addJob(String(id), request);
  choose(String(id));
  say(note, '');
  const {top} = stage.node.getBoundingClientRect();
  if (top < 0 || top > innerHeight / 2) stage.node.scrollIntoView({block: 'start'});
}

export function takeSettings(request) {
  if (!form) return;
  const homeless = form.take(request);
  say(note, `These are its settings.${homeless.length > 0
    ? ` Not in this form: ${homeless.join(', ')}.` : ''}`);
  form.get('prompt').focus();
}

async function takeFile(file) {
  if (!file) return;
  try {
    takeSettings(await parametersOf(file));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    say(note, `${file.name}: ${error.message}`);
  }
}

const chooser = element('input', {type: 'file', accept: 'image/png', hidden: true,
                                  onchange: () => takeFile(chooser.files[0]).finally(() => { chooser.value = ''; })});
const fromFile = element('button', {type: 'button', onclick: () => chooser.click()}, 'Settings from a picture …');

async function makeForm() {
  if (form) return;
  fill(side, element('p', {class: 'soft'}, 'Asking the server what it can paint …'));
  try {
    const options = await api.json('/api/v1/options');
    learnWords(options);
    form = new RequestForm(options, paint);
    fill(side, form.node, element('div', {class: 'row'}, fromFile, chooser), note);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    fill(side, element('p', {class: 'bad'}, `The server does not say what it can paint: ${error.message}.`),
      element('button', {type: 'button', onclick: makeForm}, 'Try again'));
  }
}

export function paintView(place) {
  fill(place, side, stage.node, gallery.node);
  makeForm();
  choose(chosen);
  const stopWatching = gallery.watch();
  const controller = new AbortController();
  const {signal} = controller;
  const drops = (event) => Array.from(event.dataTransfer.types).includes('Files');
  place.addEventListener('dragover', (event) => {
    if (!drops(event)) return;
    event.preventDefault();
    place.classList.add('dropping');
  }, {signal});
  place.addEventListener('dragleave', () => place.classList.remove('dropping'), {signal});
  place.addEventListener('drop', (event) => {
    place.classList.remove('dropping');
    if (!drops(event)) return;
    event.preventDefault();
    takeFile(event.dataTransfer.files[0]);
  }, {signal});
  return () => {
    controller.abort();
    stopWatching();
    stage.show(null);
  };
}
