// The page's words for fields of a request. Texts of the server name fields in `…`, and its hints options of the command line.

const kLabels = {
  cfg: 'Branches of guidance',
  control_from: 'Control begins',
  control_images: 'Follow these edges, depths or poses',
  control_scale: 'How much control counts',
  control_until: 'Control ends',
  controlnets: 'ControlNets',
  dp: 'Replicas',
  dtype: 'Computes in',
  eta: 'Eta (η)',
  guidance_scale: 'Guidance',
  guidance_scale_2: 'Guidance of the second transformer',
  images: 'Edit these pictures, or begin a video with one',
  images_per_prompt: 'Pictures',
  init_image: 'Begin with a picture',
  kv: 'K,V',
  last_image: 'Let the video end with this one',
  mask_image: 'Paint only where this one is white',
  max_sequence_length: 'Length of the prompt in tokens',
  noise_dtype: 'Draws noise in',
  num_frames: 'Frames',
  num_pipeline_patch: 'Patches',
  parallel: 'Actors',
  pp: 'Pipeline stages',
  strength: 'How much of it is made anew',
  tp: 'Tensor parallel',
  vae: 'Decoding together',
  vae_tiling: 'VAE tiling',
  warmup_steps: 'Whole steps at the start',
  weight_dtype: 'Keeps its weights as',
};

// Options that are no field in the server's list, and what they are here.
const fieldOfOption = new Map([['--init-image', 'init_image'], ['--mask', 'mask_image'], ['--image', 'images'],
  ['--last-image', 'last_image'], ['--control-image', 'control_images'], ['--parallel', 'parallel']]);
let tellLearned;
let isLearned = false;
const learned = new Promise((resolve) => { tellLearned = resolve; });

/// Takes the server's fields (GET /api/v1/options).
export function learnWords({fields, degrees}) {
  for (const {name, option} of [...fields, ...degrees])
    if (option && !fieldOfOption.has(option)) fieldOfOption.set(option, name);
  isLearned = true;
  tellLearned();
}

export const wordsAreKnown = () => isLearned;

/// Calls `say` when the server's fields are known, if they are not yet.
export function onceLearned(say) {
  if (!isLearned) learned.then(say);
}

/// "guidance_rescale" → "Guidance rescale".
export function inWords(name) {
  const words = name.replaceAll('_', ' ');
  return kLabels[name] ?? words[0].toUpperCase() + words.slice(1);
}

/// "`guidance_rescale`" and "--guidance-rescale" → "“Guidance rescale”". What else stands in `…` is a command, and stays.
export function inPageWords(text) {
  const fields = new Set(fieldOfOption.values());
  return text.replace(/`([^`]*)`|--[a-z][a-z-]*/g, (found, quoted) => {
    const field = quoted === undefined ? fieldOfOption.get(found) ?? found.slice(2).replaceAll('-', '_') : quoted;
    return quoted === undefined || fields.has(field) ? `“${inWords(field)}”` : found;
  });
}
