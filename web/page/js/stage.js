// The job in the middle of the paint view: its preview while it is painted, its pictures then, and what can be done.
import {ApiError, api, cancelJob, jobPath, listen} from './api.js';
import {element, fill, say} from './dom.js';
import {hasEnded, madeText, setProgress, sizeText, whatItDoes} from './jobtext.js';
import {parametersOf, picture, picturePath, save} from './pictures.js';
import {store} from './store.js';
import {inPageWords, onceLearned} from './words.js';

export class Stage {
  /// `onJob(job)`: news of it; `onSettings(request)`: the user wants these; `onForget(id)`: not in the gallery again;
  /// `withLink`: to all else that is known of the job.
  constructor({onJob, onSettings, onForget, withLink = true}) {
    this.onJob = onJob;
    this.onSettings = onSettings;
    this.onForget = onForget;
    this.withLink = withLink;
    this.stop = () => {};
    this.id = null;
    this.title = element('h1', {class: 'prompt'});
    this.words = element('p');
    this.heard = element('p', {role: 'status', class: 'unseen'});  // changes of the state, not each step
    this.bar = element('progress', {'aria-label': 'Progress'});
    this.pictures = element('div', {class: 'pictures'});
    this.made = element('p', {class: 'soft small'});
    this.actions = element('div', {class: 'row'});
    this.error = element('p', {class: 'bad', role: 'alert'});
    this.node = element('section', {class: 'panel stage', 'aria-label': 'The picture'});
    this.show(null);
  }

  show(id) {
    this.stop();
    this.stop = () => {};
    this.id = id;
    this.job = null;
    if (id === null) {
      fill(this.node, element('div', {class: 'blank'},
        element('p', {}, 'What you paint appears here.', element('br'),
          'Drop a picture that Troupe painted to see and use its settings.')));
      return;
    }
    fill(this.title, '…');
    fill(this.pictures);
    fill(this.actions);
    say(this.words, '');
    say(this.made, '');
    say(this.error, '');
    this.bar.hidden = true;
    say(this.heard, '');
    fill(this.node, this.title, this.words, this.heard, this.bar, this.pictures, this.made, this.error, this.actions);
    this.stop = listen(`${jobPath(id)}/events`,
      (event, data) => this.take(event, data), (error) => this.refused(error));
  }

  /// Returns true at the job's end: nothing more will come.
  take(event, data) {
    if (event === 'preview') {
      this.showPreview(data);
      return false;
    }
    this.update(data);
    return hasEnded(data);
  }

  refused(error) {
    if (error.isGone) {
      say(this.title, `Job ${this.id}`);
      say(this.words, error.status === 410 ? `Its pictures are gone: ${error.message}.`
        : 'The server does not know this job any more: it remembers only the newest ones.');
      fill(this.actions, this.forgetButton());
    } else if (error.status !== 0) {
      say(this.error, error.message);
    }
  }

  update(job) {
    const first = this.job === null;
    const before = this.job?.state;
    this.job = job;
    this.onJob(job);
    say(this.title, job.prompt || `Job ${job.id}`);
    this.showWords(job);
    onceLearned(() => this.job === job && this.showWords(job));
    this.bar.hidden = hasEnded(job);
    setProgress(this.bar, job);
    if (!first && before === job.state) return;
    say(this.heard, whatItDoes(job));
    if (hasEnded(job)) this.showEnd(job);
    else if (first) fill(this.actions, this.cancelButton(), this.detailsLink());
  }

  showWords(job) {
    const warnings = (job.warnings ?? []).map(inPageWords);
    say(this.words, [whatItDoes(job), sizeText(job), ...warnings].filter(Boolean).join('. '));
  }

  showPreview({step, steps, b64_png: png}) {
    let image = this.pictures.querySelector('img.preview');
    if (!image) {
      image = element('img', {class: 'preview'});
      fill(this.pictures, image);
    }
    image.alt = `The picture after step ${step} of ${steps}, rough`;
    image.src = `data:image/png;base64,${png}`;
  }

  showEnd(job) {
    if (job.state === 'succeeded') {
      const images = job.pictures.map((one, number) => picture(picturePath(job.id, number),
        {alt: job.prompt, width: one.width, height: one.height, 'data-number': number}));
      fill(this.pictures, images);
      if (this.withLink) this.showMade(job.id);  // else the settings stand beside it
    } else if (job.state === 'failed') {
      fill(this.pictures);
    }
    fill(this.actions, job.state === 'succeeded' ? this.pictureButtons(job) : this.settingsOfAsked(job.id), this.detailsLink(),
      this.forgetButton());
  }

  async showMade(id) {
    try {
      const text = madeText(await api.json(`${jobPath(id)}/report`));
      if (this.id === id) say(this.made, text);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;  // a report that is gone is not missed
    }
  }

  pictureButtons({id, pictures}) {
    const button = (words, action) => element('button', {type: 'button', onclick: () => this.tried(action)}, words);
    const saving = pictures.map(({frames}, index) => button(
      `Save ${frames > 1 ? 'clip' : 'picture'}${pictures.length > 1 ? ` ${index + 1}` : ''}`,
      () => save(picturePath(id, index, frames > 1 ? 'mp4' : ''), `troupe-${id}-${index}`)));
    return [saving, button('Use these settings',
      async () => this.onSettings(await parametersOf(await api.blob(picturePath(id, 0, 'png')))))];
  }

  /// Of a job without a picture that would tell them.
  settingsOfAsked(id) {
    const request = store.request(id);
    return request && element('button', {type: 'button', onclick: () => this.onSettings(request)}, 'Use these settings');
  }

  cancelButton() {
    const button = element('button', {type: 'button', class: 'danger', onclick: async () => {
      button.disabled = true;
      say(button, 'Cancelling …');
      if (!await this.tried(() => cancelJob(this.id))) {
        button.disabled = false;
        say(button, 'Cancel');
      }
    }}, 'Cancel');
    return button;
  }

  detailsLink() {
    const href = `#jobs/${encodeURIComponent(this.id)}`;
    return this.withLink && element('a', {class: 'button', href}, 'Time line, report, logs');
  }

  forgetButton() {
    const onclick = () => this.onForget(this.id);
    return store.jobs().includes(this.id) && element('button', {type: 'button', onclick}, 'Remove from my pictures');
  }

  /// Whether it worked; else its error is shown.
  async tried(action) {
    say(this.error, '');
    try {
      await action();
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      say(this.error, error.message);
      return false;
    }
  }
}
