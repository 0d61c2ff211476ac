// The form of a request. Its fields are the server's (GET /api/v1/options): a few stand in front, with words of our own;
// the others follow under "More options", with the server's.
import {element, say} from './dom.js';

const kSizes = [[256, 256], [512, 512], [768, 768], [1024, 1024], [1280, 720], [720, 1280]];
const kLabels = {images_per_prompt: 'Pictures', guidance_scale: 'Guidance', dtype: 'Computes in', num_frames: 'Frames',
  weight_dtype: 'Keeps its weights as', noise_dtype: 'Draws noise in', max_sequence_length: 'Length of the prompt in tokens',
  kv: 'Values of other patches', dp: 'Replicas', cfg: 'Branches of guidance', pp: 'Pipeline stages', ulysses: 'Ulysses',
  ring: 'Ring', tp: 'Tensor parallel', vae: 'Decoding together'};
const kPatches = 4;  // offered where a method needs some
const kMethods = {
  exact: ['Exact', 'The same picture as on one device.'],
  pipefusion: ['PipeFusion', 'Patch by patch through a pipeline of actors: sooner on several, and nearly the same picture.'],
  distrifusion: ['DistriFusion', 'Patches side by side on several actors: sooner, and nearly the same picture.'],
};
// Not in "More options": in front, of the page's own making, or nothing that a form can hold.
const kElsewhere = new Set(['prompts', 'prompt', 'width', 'height', 'steps', 'seed', 'method', 'num_pipeline_patch',
  'warmup_steps', 'progress_interval', 'progress_content', 'want_latents', 'preview_every']);

function labelled(field, control, hint, wide = false) {
  control.id = `field-${field.name}`;
  control.name = field.name;
  const wrong = element('span', {class: 'wrong', id: `${control.id}-wrong`, hidden: true});
  const words = hint && element('span', {class: 'hint', id: `${control.id}-hint`}, hint);
  control.setAttribute('aria-describedby', `${words ? `${words.id} ` : ''}${wrong.id}`);
  const check = control.type === 'checkbox';
  const label = element('label', {for: control.id}, field.label ?? kLabels[field.name] ?? inWords(field.name));
  return element('div', {class: `field${check ? ' check' : ''}${wide ? ' wide' : ''}`},
    check ? [control, label] : [label, control], words, wrong);
}

/// "guidance_scale" → "Guidance scale".
function inWords(name) {
  const words = name.replaceAll('_', ' ');
  return words[0].toUpperCase() + words.slice(1);
}

function select(choices, chosen) {
  return element('select', {}, choices.map(([value, text]) =>
    element('option', {value, selected: value === chosen}, text)));
}

/// A control for any field that the server tells of; null for what a form cannot hold.
function control(field) {
  const initial = field.default ?? '';
  switch (field.type) {
    case 'boolean': return element('input', {type: 'checkbox', checked: initial === true});
    case 'choice': {
      const choices = field.choices.filter((one) => one !== '').map((one) => [one, one]);
      return select(initial === '' ? [['', 'default'], ...choices] : choices, initial);
    }
    case 'integer':
    case 'number':
      return element('input', {type: 'number', min: field.least, max: field.most, placeholder: String(initial),
                               step: field.type === 'integer' ? 1 : 'any'});
    case 'text': return element('input', {type: 'text'});
    default: return null;
  }
}

export class RequestForm {
  /// `onSubmit(request)` resolves when the server has taken it; an ApiError is shown beside the field that it names.
  constructor(options, onSubmit) {
    this.fields = new Map((options.fields ?? []).map((field) => [field.name, field]));
    this.options = options;
    this.onSubmit = onSubmit;
    this.error = element('p', {class: 'bad', role: 'alert', hidden: true});
    this.button = element('button', {class: 'main', type: 'submit'}, 'Paint');
    this.node = element('form', {novalidate: true, 'aria-label': 'What to paint',
      onsubmit: (event) => {
        event.preventDefault();
        this.submit();
      }}, this.front(), this.more(), this.sharing(), this.error,
      element('div', {class: 'row'}, this.button, element('span', {class: 'hint soft small'}, 'or Ctrl+Enter')));
    this.node.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.submit();
      }
    });
    this.node.addEventListener('change', (event) => {
      const patches = this.get('num_pipeline_patch');
      if (event.target.name === 'method' && event.target.value !== 'exact' && patches.value === '') patches.value = kPatches;
      this.showFitting();
    });
    this.showFitting();
  }

  get(name) {
    return this.node.elements.namedItem(name);
  }

  front() {
    const field = (name, label) => ({...(this.fields.get(name) ?? {name, type: 'integer'}), label});
    const models = (this.options.models ?? []).map((model) => (typeof model === 'string' ? {id: model} : model));
    const methods = this.fields.get('method')?.choices ?? Object.keys(kMethods);
    const number = (name, label, hint) => labelled(field(name, label), control(field(name)), hint);
    return element('div', {class: 'fields'},
      labelled({name: 'prompt', label: 'What to paint'},
        element('textarea', {rows: 4, autofocus: true, placeholder: 'a red circle above a blue square on a white background'}), null, true),
      models.length > 1 && labelled({name: 'model', label: 'Model'},
        select(models.map(({id}) => [id, id]), models.find((model) => model.default)?.id), null, true),
      labelled({name: 'size', label: 'Size'}, select([['', "The model's own"],
        ...kSizes.map(([width, height]) => [`${width}x${height}`, `${width} × ${height}`]), ['other', 'Other …']], '')),
      number('steps', 'Steps', 'More steps: finer, slower'),
      number('width', 'Width in pixels'),
      number('height', 'Height in pixels'),
      labelled({name: 'seed', label: 'Seed'}, element('input', {type: 'text', inputmode: 'numeric',
        placeholder: 'a new one each time', autocomplete: 'off'}), 'The same seed gives the same picture', true),
      labelled({name: 'method', label: 'Method'}, select(methods.map((name) => [name, kMethods[name]?.[0] ?? name]), 'exact'), ' ', true),
      number('num_pipeline_patch', 'Patches', 'Parts of the picture that travel one after another'),
      number('warmup_steps', 'Whole steps at the start', 'Before it goes patch by patch'));
  }

  more() {
    const controls = [];
    for (const field of this.fields.values()) {
      if (kElsewhere.has(field.name)) continue;
      const made = control(field);
      if (made) controls.push(labelled(field, made, field.help, field.name === 'negative_prompt'));
    }
    return element('details', {}, element('summary', {}, 'More options'), element('div', {class: 'fields'}, controls));
  }

  sharing() {
    const degrees = (this.options.degrees ?? []).map((degree) =>
      labelled(degree,
        element('input', {type: 'number', min: 1, max: degree.most, step: 1, placeholder: '1'}), degree.help));
    this.degrees = element('div', {class: 'fields'}, degrees);
    return element('details', {}, element('summary', {}, 'Who paints it'),
      element('div', {class: 'fields'},
        labelled({name: 'sharing', label: 'Actors'}, select([
          ['auto', 'Troupe chooses how actors share the work'], ['one', 'One actor'],
          ['hand', 'I choose']], 'auto'), 'An actor is a process that computes on one device. The picture does not depend on how many share it.', true)),
      this.degrees);
  }

  /// Fields that mean nothing now are hidden.
  showFitting() {
    const method = this.get('method').value;
    say(this.node.querySelector('#field-method-hint'), kMethods[method]?.[1] ?? '');
    const patches = method !== 'exact';
    const other = this.get('size').value === 'other';
    for (const [name, fits] of [['num_pipeline_patch', patches], ['warmup_steps', patches], ['width', other], ['height', other]])
      this.get(name).closest('.field').hidden = !fits;
    this.degrees.hidden = this.get('sharing').value !== 'hand';
  }

  /// What POST /api/v1/jobs takes; what was left alone is left out. Throws a sentence about a field that cannot be sent.
  request() {
    const request = {prompt: this.get('prompt').value.trim()};
    if (!request.prompt) throw this.wrong('prompt', 'Say what to paint');
    if (this.get('model')) request.model = this.get('model').value;
    for (const field of [...this.fields.values(), ...(this.options.degrees ?? []).map((one) => ({...one, type: 'integer'}))]) {
      const input = this.get(field.name);
      if (!input || field.name === 'seed' || input.closest('[hidden]')) continue;
      if (input.validity?.badInput || input.validity?.stepMismatch)
        throw this.wrong(field.name, field.type === 'integer' ? 'A whole number, please' : 'A number, please');
      if (input.validity?.rangeUnderflow) throw this.wrong(field.name, `At least ${input.min}`);
      if (input.validity?.rangeOverflow) throw this.wrong(field.name, `At most ${input.max}`);
      if (input.type === 'checkbox') {
        if (input.checked !== (field.default === true)) request[field.name] = input.checked;
      } else if (input.value !== '' && input.value !== field.default) {
        request[field.name] = input.type === 'number' ? Number(input.value) : input.value;
      }
    }
    const size = this.get('size').value;
    if (/^\d+x\d+$/.test(size)) [request.width, request.height] = size.split('x').map(Number);
    const seed = this.get('seed').value.trim();
    if (seed && !(/^\d+$/.test(seed) && Number.isSafeInteger(Number(seed))))
      throw this.wrong('seed', `A whole number from 0 to ${Number.MAX_SAFE_INTEGER}, please`);
    request.seed = seed ? Number(seed) : crypto.getRandomValues(new Uint32Array(1))[0];
    if (this.get('sharing').value === 'auto') request.parallel = 'auto';
    request.preview_every = Math.max(1, Math.round((request.steps ?? this.fields.get('steps')?.default ?? 20) / 20));
    return request;
  }

  async submit() {
    if (this.button.disabled) return;
    this.clearErrors();
    let request;
    try {
      request = this.request();
    } catch (error) {
      if (!error.param) throw error;
      this.showError(error);
      return;
    }
    this.button.disabled = true;
    try {
      await this.onSubmit(request);
    } catch (error) {
      this.showError(error);
    } finally {
      this.button.disabled = false;
    }
  }

  wrong(param, message) {
    return Object.assign(new Error(message), {param});
  }

  clearErrors() {
    this.error.hidden = true;
    for (const input of this.node.querySelectorAll('[aria-invalid]')) {
      input.removeAttribute('aria-invalid');
      document.getElementById(`${input.id}-wrong`).hidden = true;
    }
  }

  showError(error) {
    const param = error.param === 'prompts' ? 'prompt' : error.param;
    const input = param && this.get(param);
    if (!input) {
      say(this.error, error.message);
      this.error.hidden = false;
      return;
    }
    const place = ['width', 'height'].includes(param) && input.closest('[hidden]') ? this.get('size') : input;
    place.setAttribute('aria-invalid', 'true');
    const wrong = document.getElementById(`${place.id}-wrong`);
    say(wrong, error.message);
    wrong.hidden = false;
    place.closest('details')?.setAttribute('open', '');
    place.focus();
  }

  /// Shows the request that made a picture. Returns the names of fields that this form has no place for.
  take(request) {
    this.clearErrors();
    this.node.reset();
    const homeless = [];
    const {prompt, prompts, width, height, parallel, model, ...rest} = request;
    this.get('prompt').value = prompt ?? prompts?.[0] ?? '';
    if (prompts?.length > 1) homeless.push(`${prompts.length - 1} more prompts`);
    if (model && this.get('model')) this.get('model').value = model;
    if (width && height) {
      const size = this.get('size');
      size.value = `${width}x${height}`;
      if (size.selectedIndex < 0) {
        size.value = 'other';
        this.get('width').value = width;
        this.get('height').value = height;
      }
    }
    for (const [name, value] of Object.entries(rest)) {
      const input = this.get(name);
      const known = this.fields.get(name);
      if (input?.type === 'checkbox') input.checked = value;
      else if (input) input.value = known && value === known.default && name !== 'seed' ? (input.type === 'number' ? '' : value) : value;
      else if (known && JSON.stringify(value) !== JSON.stringify(known.default) && !kElsewhere.has(name)) homeless.push(inWords(name));
    }
    const byHand = (this.options.degrees ?? []).some(({name}) => (request[name] ?? 1) > 1);
    this.get('sharing').value = byHand ? 'hand' : parallel === undefined ? this.get('sharing').value : 'auto';
    if (Number(this.get('seed').value) > Number.MAX_SAFE_INTEGER) homeless.push('Seed (too large for a browser)');
    this.showFitting();
    return homeless;
  }
}
