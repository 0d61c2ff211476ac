// The form of a request. Its fields are the server's (GET /api/v1/options): a few stand in front, with words of our
// own; the others follow under "More options", with the server's.
import {element, say} from './dom.js';
import {store} from './store.js';
import {inPageWords, inWords} from './words.js';

const kSizes = [[256, 256], [512, 512], [768, 768], [1024, 1024], [1280, 720], [720, 1280]];
const kExample = 'a red circle above a blue square on a white background';
const kPatches = 4;  // offered where a method needs some
const kMethods = {
  exact: ['Exact', 'The same picture as on one device.'],
  pipefusion: ['PipeFusion', 'Patch by patch through a pipeline of actors: sooner, nearly the same picture.'],
  distrifusion: ['DistriFusion', 'Patches side by side on several actors: sooner, nearly the same picture.'],
};
const kSharing = {
  auto: 'As Troupe chooses',
  one: 'One actor',
  hand: 'I choose',
};
// Not under "More options": they have a place of their own, or none, as the page shows pictures.
const kElsewhere = new Set([
  'height', 'method', 'num_pipeline_patch', 'output_type', 'seed', 'steps', 'strength', 'warmup_steps', 'width',
]);

// Numbers of ControlNets, several separated by commas.
const kControlNumbers = ['control_scale', 'control_from', 'control_until'];

/// A control of the form with its label, a hint, and a place for what is wrong with it.
function labelled(name, control, {label = inWords(name), hint = '', wide = false} = {}) {
  control.id = `field-${name}`;
  control.name = name;
  control.setAttribute('aria-describedby', `${control.id}-hint ${control.id}-wrong`);
  const check = control.type === 'checkbox';
  const words = element('label', {for: control.id}, label);
  return element('div', {class: `field${check ? ' check' : ''}${wide ? ' wide' : ''}`},
    check ? [control, words] : [words, control],
    element('span', {class: 'hint', id: `${control.id}-hint`}, hint),
    element('span', {class: 'wrong', id: `${control.id}-wrong`, hidden: true}));
}

/// `choices`: [value, text] each.
function select(choices, chosen = '') {
  return element('select', {}, choices.map(([value, text]) =>
    element('option', {value, selected: value === chosen}, text)));
}

/// A control for any field that the server tells of; null for what a form cannot hold.
function controlOf(field) {
  const initial = field.default ?? '';
  if (field.choices?.length > 0) {
    const choices = field.choices.filter((one) => one !== '').map((one) => [one, one]);
    return select(initial === '' ? [['', 'default'], ...choices] : choices, initial);
  }
  switch (field.type) {
    case 'boolean': return element('input', {type: 'checkbox', checked: initial === true});
    case 'integer':
    case 'number':
      return element('input', {
        type: 'number', min: field.least, max: field.most, step: field.type === 'integer' ? 1 : 'any',
        placeholder: String(initial),
      });
    case 'string': return element('input', {type: 'text'});
    default: return null;
  }
}

/// A file's bytes as the API takes them.
function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener('load', () => resolve(reader.result.slice(reader.result.indexOf(',') + 1)));
    reader.addEventListener('error', () => reject(wrong('init_image', 'This file cannot be read')));
    reader.readAsDataURL(file);
  });
}

/// What a list's field says: texts a line each, numbers separated by commas; '' where it says nothing.
function listOf({name, items}, input) {
  const parts = input.value.split(items === 'number' ? ',' : '\n').map((part) => part.trim()).filter((part) => part !== '');
  if (parts.length === 0) return '';
  if (items !== 'number') return parts;
  const numbers = parts.map(Number);
  if (numbers.some((number) => !Number.isFinite(number))) throw wrong(name, 'Numbers, separated by commas');
  return numbers;
}

/// A refusal of our own, of the same shape as the server's.
function wrong(param, message) {
  return Object.assign(new Error(message), {param});
}

export class RequestForm {
  /// `onSubmit(request)` resolves when the server has taken it; what it throws is shown beside the field that `param`
  /// names.
  constructor(options, onSubmit) {
    this.degrees = options.degrees.map((degree) => ({...degree, type: 'integer', default: 1}));
    this.fields = new Map([...options.fields, ...this.degrees].map((field) => [field.name, field]));
    this.onSubmit = onSubmit;
    this.error = element('p', {class: 'bad', role: 'alert', hidden: true});
    this.button = element('button', {class: 'main', type: 'submit'}, 'Paint');
    this.node = element('form', {novalidate: true, 'aria-label': 'What to paint'},
      this.front(options.models), this.more(options.fields), this.sharing(), this.error,
      element('div', {class: 'row'}, this.button, element('span', {class: 'soft small'}, 'or Ctrl+Enter')));
    this.listen();
    this.restore();
    this.showFitting();
  }

  get(name) {
    return this.node.elements.namedItem(name);
  }

  front(models) {
    const sizes = kSizes.map(([width, height]) => [`${width}x${height}`, `${width} × ${height}`]);
    const methods = this.fields.get('method').choices.map((name) => [name, kMethods[name]?.[0] ?? name]);
    const field = (name, words) => labelled(name, controlOf(this.fields.get(name)), words);
    return element('div', {class: 'fields'},
      labelled('prompt', element('textarea', {rows: 4, autofocus: true, placeholder: kExample}),
        {label: 'What to paint', wide: true}),
      models.length > 1 && labelled('model',
        select(models.map(({id}) => [id, id]), models.find((model) => model.default)?.id), {wide: true}),
      labelled('size', select([['', "Model's own"], ...sizes, ['other', 'Other …']])),
      field('steps', {hint: 'More steps: finer, slower; empty: the model\'s own number'}),
      field('width', {label: 'Width in pixels'}),
      field('height', {label: 'Height in pixels'}),
      labelled('seed',
        element('input', {inputmode: 'numeric', placeholder: 'a new one each time', autocomplete: 'off'}),
        {hint: 'The same seed gives the same picture', wide: true}),
      labelled('method', select(methods, 'exact'), {wide: true}),
      field('num_pipeline_patch', {hint: 'Parts of the picture that travel one after another'}),
      field('warmup_steps', {hint: 'Before it goes patch by patch'}));
  }

  more(fields) {
    const controls = fields.filter(({name}) => !kElsewhere.has(name)).map((field) => {
      const control = controlOf(field);
      return control && labelled(field.name, control, {hint: inPageWords(field.help ?? ''), wide: field.name === 'negative_prompt'});
    });
    return element('details', {}, element('summary', {}, 'More options'), element('div', {class: 'fields'}, controls,
      labelled('init_image', element('input', {type: 'file', accept: 'image/png,image/jpeg,image/webp'}),
        {wide: true}),
      labelled('mask_image', element('input', {type: 'file', accept: 'image/png,image/jpeg,image/webp'}),
        {wide: true}),
      labelled('images', element('input', {type: 'file', accept: 'image/png,image/jpeg,image/webp', multiple: ''}),
        {wide: true}),
      labelled('last_image', element('input', {type: 'file', accept: 'image/png,image/jpeg,image/webp'}),
        {wide: true}),
      labelled('control_images', element('input', {type: 'file', accept: 'image/png,image/jpeg,image/webp', multiple: ''}),
        {wide: true}),
      labelled('controlnets', element('textarea', {rows: 2, placeholder: 'a folder, or a name on the hub, a line each'}),
        {wide: true}),
      ...kControlNumbers.map((name) => labelled(name, element('input', {type: 'text', inputmode: 'decimal'}),
        {hint: inPageWords(this.fields.get(name).help)})),
      labelled('strength', controlOf(this.fields.get('strength')),
        {hint: 'Above 0, up to 1; empty: the model\'s own'})));
  }

  sharing() {
    this.byHand = element('div', {class: 'fields'}, this.degrees.map((degree) =>
      labelled(degree.name, controlOf(degree), {hint: inPageWords(degree.help ?? '')})));
    return element('details', {}, element('summary', {}, 'Who paints it'),
      labelled('sharing', select(Object.entries(kSharing), 'auto'), {
        label: 'Actors',
        hint: 'An actor is a process that computes on one device. The picture does not depend on how many share it.',
      }),
      this.byHand);
  }

  listen() {
    this.node.addEventListener('submit', (event) => {
      event.preventDefault();
      this.submit();
    });
    this.node.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.submit();
    });
    this.node.addEventListener('input', () => this.keep());
    this.node.addEventListener('change', ({target}) => {
      const patches = this.get('num_pipeline_patch');
      if (target.name === 'method' && target.value !== 'exact' && patches.value === '') patches.value = kPatches;
      this.showFitting();
      this.keep();
    });
  }

  /// What is typed and chosen outlives a reload. Of files that are their names: a browser gives nobody a file again.
  keep() {
    const controls = [...this.node.elements].filter(({name}) => name);
    store.setForm(Object.fromEntries(controls.map((one) => [one.name, one.type === 'checkbox' ? one.checked
      : one.type === 'file' ? one.files[0]?.name ?? '' : one.value])));
  }

  restore() {
    for (const [name, value] of Object.entries(store.form())) {
      const input = this.get(name);
      if (input?.type === 'checkbox') input.checked = value;
      else if (input?.type === 'file') this.askAgain(input, value);
      else if (input && (input.tagName !== 'SELECT' || [...input.options].some((one) => one.value === value))) input.value = value;
    }
  }

  askAgain(input, file) {
    if (!file) return;
    say(this.node.querySelector(`#${input.id}-hint`), `${file} has to be chosen again`);
    input.closest('details').open = true;
  }

  /// Fields that mean nothing now are hidden.
  showFitting() {
    const method = this.get('method').value;
    say(this.node.querySelector('#field-method-hint'), kMethods[method]?.[1] ?? '');
    for (const name of ['num_pipeline_patch', 'warmup_steps'])
      this.get(name).closest('.field').hidden = method === 'exact';
    for (const name of ['width', 'height'])
      this.get(name).closest('.field').hidden = this.get('size').value !== 'other';
    for (const name of ['mask_image', 'strength'])
      this.get(name).closest('.field').hidden = this.get('init_image').files.length === 0;
    this.get('last_image').closest('.field').hidden = this.get('images').files.length === 0;
    for (const name of ['controlnets', ...kControlNumbers])
      this.get(name).closest('.field').hidden = this.get('control_images').files.length === 0;
    this.byHand.hidden = this.get('sharing').value !== 'hand';
  }

  /// What POST /api/v1/jobs takes; what was left alone is left out. Throws what wrong() makes.
  async request() {
    const request = {prompt: this.get('prompt').value.trim()};
    if (!request.prompt) throw wrong('prompt', 'Say what to paint');
    if (this.get('model')) request.model = this.get('model').value;
    for (const field of this.fields.values()) {
      const input = this.get(field.name);
      if (!input || field.name === 'seed' || input.closest('[hidden]')) continue;
      const value = field.type === 'list' ? listOf(field, input) : this.valueOf(field, input);
      if (value !== '' && value !== field.default) request[field.name] = value;
    }
    const size = this.get('size').value;
    if (size.includes('x')) [request.width, request.height] = size.split('x').map(Number);
    request.seed = this.seed();
    const [image] = this.get('init_image').files;
    if (image) request.init_image = await base64Of(image);
    const [mask] = this.get('mask_image').files;
    if (image && mask) request.mask_image = await base64Of(mask);
    const images = [...this.get('images').files];
    if (images.length > 0) request.images = await Promise.all(images.map(base64Of));
    const [last] = this.get('last_image').files;
    if (images.length > 0 && last) request.last_image = await base64Of(last);
    const controls = [...this.get('control_images').files];
    if (controls.length > 0) request.control_images = await Promise.all(controls.map(base64Of));
    if (this.get('sharing').value === 'auto') request.parallel = 'auto';
    // Some twenty previews, however many steps there are; models' own numbers are 20 to 50.
    request.preview_every = Math.ceil((request.steps ?? 40) / 20);
    return request;
  }

  valueOf({name, type, least, above}, input) {
    const {validity} = input;
    if (validity.badInput || validity.stepMismatch)
      throw wrong(name, type === 'integer' ? 'A whole number, please' : 'A number, please');
    if (above && input.value !== '' && Number(input.value) <= least) throw wrong(name, `Above ${least}`);
    if (validity.rangeUnderflow) throw wrong(name, `At least ${input.min}`);
    if (validity.rangeOverflow) throw wrong(name, `At most ${input.max}`);
    if (type === 'boolean') return input.checked;
    return input.type === 'number' && input.value !== '' ? Number(input.value) : input.value;
  }

  seed() {
    const typed = this.get('seed').value.trim();
    if (!typed) return crypto.getRandomValues(new Uint32Array(1))[0];
    if (!/^\d+$/.test(typed) || !Number.isSafeInteger(Number(typed)))
      throw wrong('seed', `A whole number from 0 to ${Number.MAX_SAFE_INTEGER}, please`);
    return Number(typed);
  }

  async submit() {
    if (this.button.disabled) return;
    this.clearErrors();
    this.button.disabled = true;
    try {
      await this.onSubmit(await this.request());
    } catch (error) {
      this.showError(error);
    } finally {
      this.button.disabled = false;
    }
  }

  clearErrors() {
    this.error.hidden = true;
    for (const input of this.node.querySelectorAll('[aria-invalid]')) {
      input.removeAttribute('aria-invalid');
      this.node.querySelector(`#${input.id}-wrong`).hidden = true;
    }
  }

  showError({param, message}) {
    let input = param && this.get(param === 'prompts' ? 'prompt' : param);
    if (input?.closest('[hidden]')) input = ['width', 'height'].includes(param) ? this.get('size') : null;
    if (!input) {
      say(this.error, message);
      this.error.hidden = false;
      return;
    }
    input.setAttribute('aria-invalid', 'true');
    const place = this.node.querySelector(`#${input.id}-wrong`);
    say(place, message);
    place.hidden = false;
    input.closest('details')?.setAttribute('open', '');
    input.focus();
  }

  /// Shows the request that made a picture. Returns, in words, what this form has no place for.
  take(request) {
    this.clearErrors();
    this.node.reset();
    const homeless = [];
    const {prompt, prompts = [], width, height, strength, ...rest} = request;
    this.get('prompt').value = prompt ?? prompts[0] ?? '';
    if (prompts.length > 1) homeless.push('the other prompts');
    if (rest.negative_prompt === '') homeless.push('the negative prompt, which is empty');
    if (strength !== undefined) homeless.push('the picture that it began with');
    if (width && height) this.takeSize(width, height);
    if (rest.seed > Number.MAX_SAFE_INTEGER) homeless.push('the seed, which is too large for a browser');
    for (const [name, value] of Object.entries(rest)) {
      const field = this.fields.get(name);
      const input = this.get(name);
      if (!field || JSON.stringify(value) === JSON.stringify(field.default) && name !== 'seed') continue;
      if (field.above && value === field.least) continue;  // stands for the server's own
      if (!input) homeless.push(inWords(name));
      else if (field.type === 'boolean') input.checked = value;
      else input.value = value;
    }
    if (rest.model && this.get('model')) this.get('model').value = rest.model;
    if (this.degrees.some(({name}) => (request[name] ?? 1) > 1)) this.get('sharing').value = 'hand';
    this.showFitting();
    this.keep();
    return homeless;
  }

  takeSize(width, height) {
    const size = this.get('size');
    size.value = `${width}x${height}`;
    if (size.selectedIndex >= 0) return;
    size.value = 'other';
    this.get('width').value = width;
    this.get('height').value = height;
  }
}
