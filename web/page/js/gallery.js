// What this browser asked for, newest first.
import {ApiError, api, every, jobPath} from './api.js';
import {KeyedList, element, fill, say} from './dom.js';
import {shortened} from './format.js';
import {hasEnded} from './jobtext.js';
import {picture, picturePath} from './pictures.js';
import {store} from './store.js';

const kAtATime = 24;

export class Gallery {
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.jobs = new Map();  // id → what the server told last; {state: 'gone'} where it does not know it
    this.chosen = null;
    this.shown = kAtATime;
    this.list = element('ul', {class: 'gallery'});
    this.empty = element('p', {class: 'soft'}, 
      'Nothing yet. This browser remembers which jobs are yours; the pictures stay on the server.');
    this.more = element('button', {type: 'button', onclick: () => {
      this.shown += kAtATime;
      this.refresh();
    }}, 'Show older ones');
    this.node = element('section', {class: 'panel gallery-part', 'aria-labelledby': 'gallery-title'},
      element('h2', {id: 'gallery-title'}, 'My pictures'), this.empty, this.list, this.more);
    this.nodes = new KeyedList(this.list, ({id}) => this.makeItem(id), (node, item) => this.updateItem(node, item));
  }

  /// Asks for what is not known or has not ended, now and every two seconds. Returns how to stop.
  watch() {
    return every(2, () => this.refresh());
  }

  async refresh() {
    this.show();
    const open = store.jobs().slice(0, this.shown).filter((id) => {
      const job = this.jobs.get(id);
      return !job || (job.state !== 'gone' && !hasEnded(job));
    });
    for (const id of open) {
      try {
        this.jobs.set(id, await api.json(jobPath(id)));
      } catch (error) {
        if (!(error instanceof ApiError) || !error.isGone) throw error;
        this.jobs.set(id, {id, state: 'gone'});
      }
    }
    this.show();
  }

  /// News that came another way.
  take(job) {
    this.jobs.set(job.id, job);
    this.show();
  }

  choose(id) {
    this.chosen = id;
    this.show();
  }

  show() {
    const ids = store.jobs();
    this.empty.hidden = ids.length > 0;
    this.more.hidden = ids.length <= this.shown;
    this.nodes.show(ids.slice(0, this.shown).map((id) => ({id, job: this.jobs.get(id)})));
  }

  makeItem(id) {
    const thumb = element('span', {class: 'thumb'});
    const caption = element('span', {class: 'caption'});
    return element('li', {}, element('button', {type: 'button', onclick: () => this.onChoose(id)}, thumb, caption));
  }

  updateItem(node, {id, job}) {
    const button = node.firstChild;
    const [thumb, caption] = button.children;
    button.setAttribute('aria-pressed', String(id === this.chosen));
    say(caption, shortened(job?.prompt || `Job ${id}`, 80));
    const shows = !job ? '…' : job.state === 'running' ? `step ${job.step} of ${job.steps}`
      : job.state === 'gone' ? 'no longer on the server' : job.state;
    if (thumb.dataset.shows === shows) return;
    thumb.dataset.shows = shows;
    if (job?.state === 'succeeded') fill(thumb, picture(picturePath(id, 0, 'jpeg'), {alt: ''}));
    else fill(thumb, shows);
  }
}
