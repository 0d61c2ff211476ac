// What a job is doing, in words.
import {counted, duration} from './format.js';
import {store} from './store.js';
import {inPageWords} from './words.js';

const kEnded = new Set(['succeeded', 'failed', 'cancelled']);

export function hasEnded(job) {
  return kEnded.has(job.state);
}

function place(inQueue) {
  if (!(inQueue > 0)) return '';
  return inQueue === 1 ? ', next' : `, number ${inQueue}`;
}

export function whatItDoes(job) {
  const cause = inPageWords(job.cause ?? '');
  const because = cause && `: ${cause}`;
  if (job.unreachable_since) {
    const since = new Date(job.unreachable_since * 1000).toLocaleTimeString();
    return `Not known: its cluster has not been reachable since ${since}`;
  }
  switch (job.state) {
    case 'succeeded': return `Painted in ${duration(job.seconds)}`;
    case 'failed': return `Failed: ${cause || 'no cause was told'}`;
    case 'cancelled': return store.hasCancelled(job.id) ? 'Cancelled by you' : `Cancelled${because}`;
    case 'paused': return `Paused at step ${job.step} of ${job.steps}${because}`;
    case 'queued':
      return `In the queue${place(job.queue_position)}${because}`;
    case 'loading': return 'Loading the model';
    default:
  }
  if (job.phase === 'text') return 'Reading the prompt';
  if (job.phase === 'decoding') return 'Turning the result into pixels';
  if (!job.step) return 'Painting';
  const left = (job.steps - job.step) * job.seconds_per_step;
  return `Step ${job.step} of ${job.steps}${left > 1 ? `, about ${duration(left)} left` : ''}`;
}

/// From 0 to 1; null where nobody knows.
export function progressOf(job) {
  if (job.state === 'succeeded') return 1;
  if (job.state === 'running' && job.steps > 0 && job.phase !== 'text') return job.step / job.steps;
  return job.state === 'loading' || job.state === 'running' ? null : 0;
}

export function setProgress(bar, job) {
  const part = progressOf(job);
  if (part === null) bar.removeAttribute('value');
  else bar.value = part;
}

/// What the job's degrees were, of its report's plan: ["cfg 2", "pp 2"].
export function degreesOf(plan) {
  return Object.entries(plan?.mesh ?? {}).filter(([name, count]) => name !== 'world' && count > 1)
    .map(([name, count]) => `${name} ${count}`);
}

/// What it takes to make the pictures again, of the report: "Seed 7, cfg 2 × pp 2".
export function madeText({request = {}, plan}) {
  const seeds = Array.isArray(request.seeds) ? request.seeds : [request.seed];
  return [seeds[0] !== undefined && `Seed${seeds.length > 1 ? 's' : ''} ${seeds.join(', ')}`,
    plan?.mesh && (degreesOf(plan).join(' × ') || 'one actor')].filter(Boolean).join('; ');
}

export function sizeText(job) {
  const [first] = job.pictures ?? [];
  return [first?.width && `${first.width} × ${first.height} pixels`,
    job.pictures?.length > 1 && counted(job.pictures.length, 'picture')].filter(Boolean).join(', ');
}
