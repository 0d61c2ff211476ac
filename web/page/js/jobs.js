// The view of all jobs: the queue, with why each waits; what runs; what has ended.
import {ApiError, api, cancelJob, every} from './api.js';
import {Table, element, fill, say} from './dom.js';
import {counted, duration, moment, shortened} from './format.js';
import {hasEnded, setProgress, whatItDoes} from './jobtext.js';

const kPage = 100;
const kFilters = {
  all: ['All', () => true],
  open: ['Waiting or running', (job) => !hasEnded(job)],
  succeeded: ['Succeeded', (job) => job.state === 'succeeded'],
  failed: ['Failed', (job) => job.state === 'failed'],
  cancelled: ['Cancelled', (job) => job.state === 'cancelled'],
};

export function jobsView(place) {
  let jobs = [];            // newest first, as the server gives them
  let older = null;         // the id before which there is more
  let hasAskedOlder = false;
  const filter = element('select', {onchange: () => show()},
    Object.entries(kFilters).map(([value, [name]]) => element('option', {value}, name)));
  const words = element('input', {
    type: 'search', placeholder: 'in prompts, numbers and causes', oninput: () => show(),
  });
  const note = element('p', {role: 'status', class: 'soft small'});
  const error = element('p', {class: 'bad', role: 'alert'});
  const more = element('button', {type: 'button', hidden: true, onclick: () => load(older)}, 'Show older jobs');

  function makeRow([number, what, state, time, asked, priority, action], {id, number: jobNumber}) {
    const doing = element('span');
    const bar = element('progress', {'aria-label': `Progress of job ${jobNumber}`});
    fill(number, element('a', {href: `#jobs/${encodeURIComponent(id)}`}, String(jobNumber)));
    fill(state, element('div', {}, doing, bar));
    fill(action, element('button', {
      type: 'button', class: 'danger', 'aria-label': `Cancel job ${jobNumber}`, onclick: (event) => cancel(id, event.target),
    }, 'Cancel'));
    what.classList.add('job-prompt');
    return (job) => {
      say(what, shortened(job.prompt, 160));
      doing.className = `state ${job.state}`;
      say(doing, whatItDoes(job));
      bar.hidden = hasEnded(job) || job.state === 'queued';
      setProgress(bar, job);
      say(time, duration(job.seconds));
      say(asked, moment(job.created_at));
      say(priority, job.priority ? String(job.priority) : '');
      if (hasEnded(job)) fill(action);
    };
  }

  const table = new Table([
    {head: 'Job'}, {head: 'What'}, {head: 'State'}, {head: 'Time', number: true}, {head: 'Asked for'},
    {head: 'Priority', number: true}, {head: ''},
  ], makeRow);

  function show() {
    const wanted = words.value.trim().toLowerCase();
    const [, fits] = kFilters[filter.value];
    const textOf = (job) => `${job.id} ${job.prompt} ${job.cause}`.toLowerCase();
    const shown = jobs.filter((job) => fits(job) && textOf(job).includes(wanted));
    table.show(shown);
    table.node.hidden = shown.length === 0;
    more.hidden = older === null;
    const all = counted(jobs.length, 'job');
    say(note, jobs.length === 0 ? 'No jobs yet.' : shown.length === jobs.length ? all : `${shown.length} of ${all}`);
  }

  /// The newest jobs, or those before one.
  async function load(before) {
    const behind = before ? `&before=${encodeURIComponent(before)}` : '';
    const page = await api.json(`/api/v1/jobs?limit=${kPage}${behind}`);
    const fresh = new Set(page.jobs.map(({id}) => id));
    const others = jobs.filter(({id}) => !fresh.has(id));
    jobs = before ? [...others, ...page.jobs] : [...page.jobs, ...others];
    // The first page says what is older than itself: only until an older page has said more.
    if (before || !hasAskedOlder) older = page.next ?? null;
    hasAskedOlder ||= Boolean(before);
    show();
  }

  async function cancel(id, button) {
    button.disabled = true;
    say(error, '');
    try {
      await cancelJob(id);
      await load(null);
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      button.disabled = false;
      say(error, refusal.message);
    }
  }

  fill(place, element('section', {class: 'panel', 'aria-labelledby': 'jobs-title'},
    element('h1', {id: 'jobs-title'}, 'Jobs'),
    element('div', {class: 'filters'}, element('label', {}, 'Which', filter), element('label', {}, 'Search', words)),
    note, error, table.node, more));
  return every(2, () => load(null));
}
