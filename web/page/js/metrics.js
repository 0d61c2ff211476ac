// The view of figures over time. They are read from /metrics while the page is open, drawn here, and kept nowhere.
import {ApiError, api, every} from './api.js';
import {element, fill, say} from './dom.js';
import {bytes, duration, percent, significant} from './format.js';
import {LineChart} from './line_chart.js';
import {growth, matching, parseMetrics, quantile, total} from './prometheus.js';

const kEvery = 3;         // seconds between readings
const kReadings = 300;    // remembered: 15 minutes
const kRateOver = 10;     // seconds that a rate is taken over
const kLatencyOver = 60;
const kMostActors = 8;    // drawn one by one

const kKinds = {text: 'prompts', micro_step: 'steps', decode: 'decoding'};
const kPhases = {
  queued: 'queue', loading: 'loading the model', text: 'prompt', denoising: 'steps', decoding: 'pixels',
};
const kPlanes = {tensor: 'tensors', blob: 'pictures', control: 'control messages'};
const readings = [];      // {time, families}
let refusal = '';         // why the newest reading did not come

/// The youngest reading that is at least `seconds` older than reading `i`; the first where there is none.
function earlier(i, seconds) {
  let found = i;
  while (found > 0 && readings[i].time - readings[found].time < seconds) found -= 1;
  return readings[found];
}

// A series is {name, values}, a value for each reading.

/// `value(families, families before)` → growth, as growth per second.
function perSecond(name, value) {
  return {name, values: readings.map((now, i) => {
    const before = earlier(i, kRateOver);
    return now === before ? NaN : value(now.families, before.families) / (now.time - before.time);
  })};
}

function rate(name, metric, wanted, scale = 1) {
  return perSecond(name, (now, before) => scale * growth(now, before, metric, wanted));
}

function level(name, metric, wanted) {
  return {name, values: readings.map(({families}) => total(families, metric, wanted))};
}

/// A rate for each value that a label has.
function rates(metric, label, {names = {}, scale = 1, wanted = {}} = {}) {
  return labelsOf(metric, label, wanted).map((value) =>
    rate(names[value] ?? value, metric, {...wanted, [label]: value}, scale));
}

/// All values of a label in the newest reading.
function labelsOf(metric, label, wanted) {
  const newest = readings.at(-1)?.families ?? new Map();
  return [...new Set(matching(newest, metric, wanted).map(({labels}) => labels[label]))]
    .sort((a, b) => a.localeCompare(b, undefined, {numeric: true}));
}

function perActor(metric) {
  const actors = labelsOf(metric, 'actor');
  if (actors.length <= kMostActors) return actors.map((actor) => level(`actor ${actor}`, metric, {actor}));
  const sorted = readings.map(({families}) =>
    matching(families, metric).map(({value}) => value).sort((a, b) => a - b));
  const pick = (name, index) => ({name, values: sorted.map((values) => index(values) ?? NaN)});
  return [pick('fullest actor', (values) => values.at(-1)),
    pick('middle', (values) => values[Math.floor(values.length / 2)]),
    pick('leanest', (values) => values[0])];
}

function quantileOf(name, metric, part, wanted) {
  return {name, values: readings.map((now, i) =>
    quantile(now.families, earlier(i, kLatencyOver).families, metric, part, wanted))};
}

/// Of the time that actors have: the part inside tasks, and waiting inside tasks.
function shares() {
  const actors = total(readings.at(-1).families, 'troupe_actors', {state: 'ready'});
  const waits = (now, before) => growth(now, before, 'troupe_task_wait_seconds_total');
  const tasks = (now, before) => growth(now, before, 'troupe_task_seconds_total');
  return [
    perSecond('computing', (now, before) => (tasks(now, before) - waits(now, before)) / actors),
    perSecond('waiting for other actors', (now, before) => waits(now, before) / actors),
  ];
}

const rateOfBytes = (value) => `${bytes(value)}/s`;

/// `needs`: the metric without which there is no chart.
const kCharts = [
  {
    title: 'Jobs', about: 'How many wait, load or are painted now.', format: significant,
    series: () => [level('in the queue', 'troupe_queue_length'), level('loading', 'troupe_jobs', {state: 'loading'}),
      level('painting', 'troupe_jobs', {state: 'running'})],
  },
  {
    title: 'Throughput', about: `Jobs that ended per minute, over the last ${kRateOver} seconds.`, format: significant,
    series: () => rates('troupe_jobs_ended_total', 'state', {scale: 60}),
  },
  {
    title: 'Latency', about: 'From the request to the picture, of jobs of the last minute.', format: duration,
    needs: 'troupe_request_seconds_bucket', series: () => [
      quantileOf('half are quicker than', 'troupe_request_seconds', 0.5),
      quantileOf('95 of 100 are quicker than', 'troupe_request_seconds', 0.95),
    ],
  },
  {
    title: 'Where the time goes', about: 'Seconds that half of the jobs of the last minute stay below.',
    format: duration, needs: 'troupe_phase_seconds_bucket',
    series: () => labelsOf('troupe_phase_seconds_count', 'phase').map((phase) =>
      quantileOf(kPhases[phase] ?? phase, 'troupe_phase_seconds', 0.5, {phase})),
  },
  {
    title: 'What actors do', about: 'Of their time; the rest is idle.', format: percent, series: shares,
  },
  {
    title: 'Work', about: 'Tasks done per second, each counted at each actor.', format: significant,
    series: () => rates('troupe_tasks_total', 'kind', {names: kKinds}),
  },
  {
    title: 'Memory', about: 'Of the actors’ processes, where it is known.', format: bytes,
    needs: 'troupe_actor_memory_bytes', series: () => perActor('troupe_actor_memory_bytes'),
  },
  {
    title: 'Memory of devices', about: 'Used on each actor’s device.', format: bytes,
    needs: 'troupe_device_memory_bytes', series: () => perActor('troupe_device_memory_bytes'),
  },
  {
    title: 'Bytes between actors', about: 'Sent per second, by group; counted when a job ends.', format: rateOfBytes,
    needs: 'troupe_tensor_bytes_total', series: () => rates('troupe_tensor_bytes_total', 'group'),
  },
  {
    title: 'Bytes', about: 'Sent per second; tensors between actors are counted when a job ends.', format: rateOfBytes,
    series: () => rates('troupe_bytes_total', 'plane', {names: kPlanes, wanted: {direction: 'sent'}}),
  },
];

/// Begins to read, for as long as the page is open.
export function watchMetrics() {
  every(kEvery, async () => {
    try {
      readings.push({time: performance.now() / 1000, families: parseMetrics(await api.text('/metrics'))});
      readings.splice(0, readings.length - kReadings);
      refusal = '';
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      refusal = error.message;
    }
    window.dispatchEvent(new Event('metrics'));
  });
}

export function metricsView(place) {
  const charts = kCharts.map((spec) => ({...spec, chart: new LineChart(spec)}));
  const note = element('p', {class: 'soft', role: 'status'});

  function show() {
    const newest = readings.at(-1)?.families;
    if (refusal) say(note, `No figures come: ${refusal}.`);
    else if (!newest) say(note, 'Reading the first figures …');
    else say(note, 'Figures since this page was opened. Prometheus reads the same from /metrics.');
    if (!newest) return;
    const times = readings.map(({time}) => time);
    for (const {chart, needs, series} of charts) {
      chart.node.hidden = needs !== undefined && !newest.has(needs);
      chart.show(times, series());
    }
  }

  fill(place, element('h1', {}, 'Metrics'), note,
    element('div', {class: 'charts'}, charts.map(({chart}) => chart.node)));
  show();
  window.addEventListener('metrics', show);
  return () => window.removeEventListener('metrics', show);
}
