// The view of one job: what it does or did, its pictures, when which actor computed what, the report, the logs.
import {ApiError, api, jobPath} from './api.js';
import {element, fill, panel, say} from './dom.js';
import {bytes, duration, moment} from './format.js';
import {degreesOf, hasEnded} from './jobtext.js';
import {takeSettings} from './paint.js';
import {PipelineChart} from './pipeline_chart.js';
import {slicesOfTrace} from './slices.js';
import {Stage} from './stage.js';
import {store} from './store.js';

const kPhases = {
  queued: 'In the queue',
  loading: 'Loading the model',
  text: 'Reading the prompt',
  denoising: 'Painting',
  decoding: 'Turning the result into pixels',
};

/// Bars beside each other, of [name, value, text], under a title; nothing where there are none.
function bars(title, entries) {
  if (entries.length === 0) return [];
  const most = Math.max(...entries.map(([, value]) => value), 1e-12);
  const rows = entries.map(([name, value, text]) => {
    const bar = element('div');
    bar.style.width = `${100 * value / most}%`;
    return [element('span', {}, name), element('div', {class: 'meter', 'aria-hidden': 'true'}, bar),
      element('span', {}, text)];
  });
  return [element('h3', {}, title), element('div', {class: 'bars'}, rows)];
}

function reportParts(report) {
  const seconds = report.seconds ?? {};
  const waited = (actor) => actor.waiting_seconds + (actor.controller_wait_seconds ?? 0);
  return [
    bars('Where the time went', Object.entries(kPhases).filter(([key]) => seconds[key] > 0)
      .map(([key, name]) => [name, seconds[key], duration(seconds[key])])),
    bars('How long each actor computed', (report.actors ?? []).map((actor) => [`Actor ${actor.actor}`,
      actor.busy_seconds, `${duration(actor.busy_seconds)}, waited ${duration(waited(actor))}`])),
    bars('What actors sent to each other', Object.entries(report.bytes?.tensor_plane_by_group ?? {})
      .map(([name, count]) => [name, count, bytes(count)])),
    (report.recoveries ?? []).map((loss) =>
      element('p', {}, `Went on from step ${loss.step} after a loss: ${loss.cause}`)),
    element('details', {}, element('summary', {}, 'The whole report (JSON)'),
      element('pre', {tabindex: 0}, JSON.stringify(report, null, 2))),
  ];
}

/// What the job was asked for, of its report.
function settingsOf({request = {}, plan = {}}) {
  const list = (value) => (Array.isArray(value) ? value.join(', ') : value);
  const patches = request.patches > 1 && ` in ${request.patches} patches`;
  return [
    ['Size', request.width && `${request.width} × ${request.height} pixels`],
    ['Pictures per prompt', request.images_per_prompt > 1 && request.images_per_prompt],
    ['Steps', request.steps],
    ['Seed', list(request.seeds) ?? request.seed],
    ['Guidance', request.guidance_scale],
    ['Not to be seen', request.negative_prompt],
    ['Sampler', request.sampler],
    ['Type', request.dtype],
    ['Method', request.method && `${request.method}${patches || ''}`],
    ['LoRAs', list((request.loras ?? []).map(({file, path, scale}) => `${file ?? path} × ${scale ?? 1}`))],
    ['Learned words', list((request.embeddings ?? []).map(({file, path, token}) => `${token ?? ''} (${file ?? path})`))],
    ['Actors', plan.mesh && (degreesOf(plan).join(', ') || '1')],
  ].map(([name, value]) => [name, value === 0 ? '0' : value && String(value)]);
}

function factsOf(job, settings) {
  const facts = [
    ['Job', String(job.number)],
    ['Model', job.model],
    ['Asked for', moment(job.created_at)],
    [hasEnded(job) ? 'Took' : 'Takes so far', duration(job.seconds)],
    ['Seconds per step', job.seconds_per_step > 0 && duration(job.seconds_per_step)],
    ['Priority', job.priority && String(job.priority)],
    ['Counts for', job.share],
    ...settings,
  ];
  return facts.filter(([, value]) => value)
    .map(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]);
}

export function jobView(place, id) {
  const facts = element('dl', {class: 'facts'});
  const chart = new PipelineChart({live: false});
  const chartNote = element('p', {class: 'soft'});
  const report = element('div', {}, element('p', {class: 'soft'}, 'There is one when the job has ended.'));
  const logs = element('pre', {tabindex: 0, 'aria-label': 'Logs'});
  const refresh = (load) => element('button', {type: 'button', onclick: load}, 'Refresh');

  /// Loads a part of the view; a refusal is said in its place.
  const loader = (path, show, refuse) => async () => {
    try {
      await show(`${jobPath(id)}/${path}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      refuse(error.message);
    }
  };
  const loadTimeline = loader('timeline', async (path) => {
    chart.showTrace(slicesOfTrace(await api.json(path)));
    say(chartNote, '');
  }, (message) => say(chartNote, message));
  const loadLogs = loader('logs', async (path) => say(logs, await api.text(path) || 'Nothing was written.'),
    (message) => say(logs, message));
  const loadReport = loader('report', async (path) => {
    const read = await api.json(path);
    fill(report, reportParts(read));
    settings = settingsOf(read);
    fill(facts, factsOf(stage.job, settings));
  }, (message) => fill(report, element('p', {class: 'soft'}, message)));

  let state = null;
  let settings = [];
  function news(job) {
    fill(facts, factsOf(job, settings));
    if (job.state === state) return;
    ({state} = job);
    loadTimeline();
    loadLogs();
    if (hasEnded(job)) loadReport();
  }

  const stage = new Stage({
    withLink: false,
    onJob: news,
    onSettings: (request) => {
      location.hash = '#paint';
      takeSettings(request);
    },
    onForget: (one) => {
      store.removeJob(one);
      location.hash = '#paint';
    },
  });
  fill(place,
    element('p', {}, element('a', {href: '#jobs'}, '← All jobs')),
    stage.node,
    element('section', {class: 'panel', 'aria-label': 'Facts'}, facts),
    panel('Who computed what, when', [chart.controls, refresh(loadTimeline)], chartNote, chart.node),
    panel('Report', null, report),
    panel('Logs', refresh(loadLogs), logs));
  stage.show(id);
  return () => {
    stage.show(null);
    chart.close();
  };
}
