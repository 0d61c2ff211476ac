// The view of all jobs: the queue, with why each waits; what runs; what has ended.
import {ApiError, api, every, jobPath} from './api.js';
import {KeyedList, element, fill, say} from './dom.js';
import {counted, duration, moment, shortened} from './format.js';
import {hasEnded, setProgress, whatItDoes} from './jobtext.js';

const kPage = 100;
const kFilters = {all: ['All', () => true], open: ['Waiting or running', (job) => !hasEnded(job)],
                  succeeded: ['Succeeded', (job) => job.state === 'succeeded'], failed: ['Failed', (job) => job.state === 'failed'],
                  cancelled: ['Cancelled', (job) => job.state === 'cancelled']};

export function jobsView(place) {
  const jobs = new Map();  // by id, in the server's order: newest first
  let older = null;        // the id before which there is more
  let reachedOlder = false;
  const state = element('select', {onchange: () => show()},
    Object.entries(kFilters).map(([value, [name]]) => element('option', {value}, name)));
  const words = element('input', {type: 'search', placeholder: 'in prompts, numbers and causes', oninput: () => show()});
  const note = element('p', {role: 'status', class: 'soft small'});
  const error = element('p', {class: 'bad', role: 'alert'});
  const body = element('tbody');
  const heads = ['Job', 'What', 'State', 'Time', 'Asked for', 'Priority', ''];
  const more = element('button', {type: 'button', hidden: true, onclick: () => load(older)}, 'Show older jobs');
  const table = element('div', {class: 'table-box'}, element('table', {class: 'narrow'},
    element('thead', {}, element('tr', {}, heads.map((head) => element('th', {scope: 'col', class: isNumber(head) ? 'number' : null},
      head || element('span', {class: 'unseen'}, 'Action'))))), body));
  fill(place, element('section', {class: 'panel', 'aria-labelledby': 'jobs-title'},
    element('h1', {id: 'jobs-title'}, 'Jobs'),
    element('div', {class: 'filters'}, element('label', {}, 'Which', state), element('label', {}, 'Search', words)),
    note, error, table, more));

  function isNumber(head) {
    return head === 'Time' || head === 'Priority';
  }

  function makeRow(job) {
    const cells = heads.map((head) => element('td', {'data-head': head, class: isNumber(head) ? 'number' : head === 'What' ? 'job-prompt' : null}));
    fill(cells[0], element('a', {href: `#jobs/${encodeURIComponent(job.id)}`}, job.id));
    fill(cells[2], element('div', {}, element('span'), element('progress', {'aria-label': `Progress of job ${job.id}`})));
    fill(cells[6], element('button', {type: 'button', class: 'danger', 'aria-label': `Cancel job ${job.id}`, onclick: (event) => cancel(job.id, event.target)}, 'Cancel'));
    return element('tr', {}, cells);
  }

  function updateRow(row, job) {
    const [, what, doing, time, asked, priority, action] = row.children;
    say(what, shortened(job.prompt, 160));
    const [text, bar] = doing.firstChild.children;
    text.className = `state ${job.state}`;
    text.style.whiteSpace = 'normal';
    say(text, whatItDoes(job));
    bar.hidden = hasEnded(job) || job.state === 'queued';
    setProgress(bar, job);
    say(time, duration(job.seconds));
    say(asked, moment(job.created_at));
    say(priority, job.priority ? String(job.priority) : '');
    if (hasEnded(job)) action.replaceChildren();
  }

  const rows = new KeyedList(body, makeRow, updateRow);

  function show() {
    const wanted = words.value.trim().toLowerCase();
    const [, fits] = kFilters[state.value];
    const all = [...jobs.values()];
    const shown = all.filter((job) => fits(job) && (!wanted ||
      `${job.id} ${job.prompt} ${job.cause}`.toLowerCase().includes(wanted)));
    rows.show(shown);
    table.hidden = shown.length === 0;
    more.hidden = older === null;
    say(note, all.length === 0 ? 'No jobs yet.' : shown.length === all.length ? counted(all.length, 'job')
      : `${shown.length} of ${counted(all.length, 'job')}`);
  }

  async function load(before) {
    const page = await api.json(`/api/v1/jobs?limit=${kPage}${before ? `&before=${encodeURIComponent(before)}` : ''}`);
    const known = [...jobs.values()];
    const fresh = new Set(page.jobs.map((job) => job.id));
    jobs.clear();
    const rest = known.filter((job) => !fresh.has(job.id));
    for (const job of before ? [...known, ...page.jobs] : [...page.jobs, ...rest]) jobs.set(job.id, job);
    if (before || !reachedOlder) older = page.next ?? null;
    if (before) reachedOlder = true;
    show();
  }

  async function cancel(id, button) {
    button.disabled = true;
    say(error, '');
    try {
      const job = await api.post(`${jobPath(id)}/cancel`);
      if (job.id) jobs.set(job.id, job);
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      button.disabled = false;
      say(error, refusal.message);
    }
    show();
  }

  return every(2, () => load(null));
}
