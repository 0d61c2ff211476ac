// The view of figures over time. They are read from /metrics while the page is open, drawn here, and kept nowhere.
import {api, every} from './api.js';
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
const readings = [];      // {time, families}

/// The youngest reading that is at least `seconds` older than reading `i`; the first where there is none.
function earlier(i, seconds) {
  let found = i;
  while (found > 0 && readings[i].time - readings[found].time < seconds) found -= 1;
  return readings[found];
}

/// A series of what grew per second.
function rate(name, metric, wanted, scale = 1) {
  return {name, values: readings.map((now, i) => {
    const before = earlier(i, kRateOver);
    return now === before ? NaN : scale * growth(now.families, before.families, metric, wanted) / (now.time - before.time);
  })};
}

function level(name, metric, wanted) {
  return {name, values: readings.map(({families}) => total(families, metric, wanted))};
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
  const each = (pick) => readings.map(({families}) => pick(matching(families, metric).map(({value}) => value).sort((a, b) => a - b)));
  return [{name: 'fullest actor', values: each((values) => values.at(-1) ?? NaN)},
    {name: 'middle', values: each((values) => values[Math.floor(values.length / 2)] ?? NaN)},
    {name: 'leanest', values: each((values) => values[0] ?? NaN)}];
}

function quantiles(metric, wanted) {
  return [['half are quicker than', 0.5], ['95 of 100 are quicker than', 0.95]].map(([name, part]) => ({name,
    values: readings.map((now, i) => quantile(now.families, earlier(i, kLatencyOver).families, metric, part, wanted))}));
}

/// Of the time that ready actors have: the shares inside tasks, and waiting inside tasks.
function shares() {
  const share = (name, of) => ({name, values: readings.map((now, i) => {
    const before = earlier(i, kRateOver);
    const actors = total(now.families, 'troupe_actors', {state: 'ready'}) || labelsOf('troupe_actor_memory_bytes', 'actor').length;
    return now === before || !actors ? NaN : Math.min(1, of(now.families, before.families) / (now.time - before.time) / actors);
  })});
  const waits = (now, before) => growth(now, before, 'troupe_task_wait_seconds_total');
  return [share('computing', (now, before) => growth(now, before, 'troupe_task_seconds_total') - waits(now, before)),
    share('waiting for other actors', waits)];
}

const kCharts = [
  {title: 'Jobs', about: 'How many wait, load or are painted now.', format: significant,
   series: () => [level('in the queue', 'troupe_queue_length'), level('loading', 'troupe_jobs', {state: 'loading'}),
                  level('painting', 'troupe_jobs', {state: 'running'})]},
  {title: 'Throughput', about: `Jobs that ended per minute, over the last ${kRateOver} seconds.`, format: significant,
   series: () => labelsOf('troupe_jobs_ended_total', 'state').map((state) => rate(state, 'troupe_jobs_ended_total', {state}, 60))},
  {title: 'Latency', about: 'Seconds from the request to the picture, of jobs of the last minute.', format: duration,
   needs: 'troupe_request_seconds_bucket', series: () => quantiles('troupe_request_seconds')},
  {title: 'Time in the queue', about: 'Seconds that jobs of the last minute waited for actors.', format: duration,
   needs: 'troupe_queue_seconds_bucket', series: () => quantiles('troupe_queue_seconds')},
  {title: 'Seconds per step', about: 'Of jobs of the last minute.', format: duration,
   needs: 'troupe_step_seconds_bucket', series: () => quantiles('troupe_step_seconds')},
  {title: 'What actors do', about: 'Of their time; the rest is idle.', format: percent, series: shares},
  {title: 'Work', about: 'Tasks done per second, by kind, each counted at each actor.', format: significant,
   series: () => labelsOf('troupe_tasks_total', 'kind').map((kind) => rate(kKinds[kind] ?? kind, 'troupe_tasks_total', {kind}))},
  {title: 'Memory', about: 'Of the actors’ processes, where it is known.', format: bytes, series: () => perActor('troupe_actor_memory_bytes')},
  {title: 'Memory of devices', about: 'Used on each actor’s device.', format: bytes, needs: 'troupe_device_memory_bytes',
   series: () => perActor('troupe_device_memory_bytes')},
  {title: 'Bytes between actors, by group', about: 'Sent per second; counted when a job ends.', format: (value) => `${bytes(value)}/s`,
   needs: 'troupe_tensor_bytes_total', series: () => labelsOf('troupe_tensor_bytes_total', 'group')
     .map((group) => rate(group, 'troupe_tensor_bytes_total', {group}))},
  {title: 'Bytes', about: 'Sent per second: tensors between actors (counted when a job ends), pictures, and control messages.',
   format: (value) => `${bytes(value)}/s`, series: () => [['tensors', 'tensor'], ['pictures', 'blob'], ['control messages', 'control']]
     .map(([name, plane]) => rate(name, 'troupe_bytes_total', {plane, direction: 'sent'}))},
];

async function read() {
  readings.push({time: performance.now() / 1000, families: parseMetrics(await api.text('/metrics'))});
  readings.splice(0, readings.length - kReadings);
}

/// Begins to read, for as long as the page is open.
export function watchMetrics() {
  every(kEvery, async () => {
    await read();
    dispatchEvent(new Event('metrics'));
  });
}

export function metricsView(place) {
  const charts = kCharts.map((spec) => ({...spec, chart: new LineChart(spec)}));
  const note = element('p', {class: 'soft', role: 'status'});
  fill(place, element('h1', {}, 'Metrics'), note, element('div', {class: 'charts'}, charts.map(({chart}) => chart.node)));
  function show() {
    const newest = readings.at(-1)?.families;
    say(note, newest ? 'Figures since this page was opened. Prometheus reads the same from /metrics.' : 'Reading the first figures …');
    const times = readings.map(({time}) => time);
    for (const {chart, needs, series} of charts) {
      chart.node.hidden = Boolean(needs && newest && !newest.has(needs));
      chart.show(times, readings.length > 0 ? series() : []);
    }
  }
  show();
  addEventListener('metrics', show);
  return () => removeEventListener('metrics', show);
}
