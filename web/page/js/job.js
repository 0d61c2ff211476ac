// The view of one job: what it does or did, its pictures, when which actor computed what, the report, the logs.
import {ApiError, api, jobPath, listen} from './api.js';
import {element, fill, say} from './dom.js';
import {bytes, duration, moment} from './format.js';
import {hasEnded} from './jobtext.js';
import {PipelineChart, slicesOfTrace} from './pipeline_chart.js';
import {Stage} from './stage.js';
import {takeSettings} from './paint.js';
import {store} from './store.js';

const kPhases = {queued: 'In the queue', loading: 'Loading the model', text: 'Reading the prompt',
                 denoising: 'Painting', decoding: 'Turning the result into pixels'};

/// Bars beside each other: [name, value, text].
function bars(entries) {
  const most = Math.max(...entries.map(([, value]) => value), 1e-12);
  return element('div', {class: 'bars'}, entries.map(([name, value, text]) => {
    const bar = element('div');
    bar.style.width = `${100 * value / most}%`;
    return [element('span', {}, name), element('div', {class: 'meter', 'aria-hidden': 'true'}, bar), element('span', {}, text)];
  }));
}

function reportParts(report) {
  const parts = [];
  const seconds = Object.entries(kPhases).filter(([key]) => report.seconds?.[key] > 0)
    .map(([key, name]) => [name, report.seconds[key], duration(report.seconds[key])]);
  if (seconds.length > 0) parts.push(element('h3', {}, 'Where the time went'), bars(seconds));
  const actors = (report.actors ?? []).map((actor) => [`Actor ${actor.actor}`, actor.busy_seconds,
    `${duration(actor.busy_seconds)}, waited ${duration(actor.waiting_seconds + (actor.controller_wait_seconds ?? 0))}`]);
  if (actors.length > 0) parts.push(element('h3', {}, 'How long each actor computed'), bars(actors));
  const groups = Object.entries(report.bytes?.tensor_plane_by_group ?? {});
  if (groups.length > 0)
    parts.push(element('h3', {}, 'What actors sent to each other'), bars(groups.map(([name, count]) => [name, count, bytes(count)])));
  for (const loss of report.recoveries ?? [])
    parts.push(element('p', {}, `Went on from step ${loss.step} after a loss: ${loss.cause}`));
  return parts;
}

export function jobView(place, id) {
  let left = false;
  const stage = new Stage({
    withLink: false,
    onJob: (job) => news(job),
    onSettings: (request) => {
      location.hash = '#paint';
      takeSettings(request);
    },
    onForget: (one) => {
      store.removeJob(one);
      location.hash = '#paint';
    },
  });
  const facts = element('dl', {class: 'facts'});
  const chart = new PipelineChart({live: false});
  const report = element('div', {}, element('p', {class: 'soft'}, 'There is one when the job has ended.'));
  const logs = element('pre', {tabindex: 0, 'aria-label': 'Logs'});
  const timelineNote = element('p', {class: 'soft', hidden: true});
  fill(place,
    element('p', {}, element('a', {href: '#jobs'}, '← All jobs')),
    stage.node,
    element('section', {class: 'panel', 'aria-label': 'Facts'}, facts),
    element('section', {class: 'panel', 'aria-labelledby': 'line-title'},
      element('div', {class: 'chart-head'}, element('h2', {id: 'line-title'}, 'Who computed what, when'), chart.head,
        element('button', {type: 'button', onclick: () => loadTimeline()}, 'Refresh')),
      timelineNote, chart.node),
    element('section', {class: 'panel', 'aria-labelledby': 'report-title'}, element('h2', {id: 'report-title'}, 'Report'), report),
    element('section', {class: 'panel', 'aria-labelledby': 'logs-title'},
      element('div', {class: 'chart-head'}, element('h2', {id: 'logs-title'}, 'Logs'),
        element('button', {type: 'button', onclick: () => loadLogs()}, 'Refresh')), logs));

  let lastState = null;
  function news(job) {
    const rows = [['Job', job.id], ['Model', job.model], ['Asked for', moment(job.created_at)],
      ['Took so far', duration(job.seconds)], ['Seconds per step', job.seconds_per_step > 0 ? duration(job.seconds_per_step) : ''],
      ['Priority', job.priority ? String(job.priority) : ''], ['Counts for', job.share]];
    if (hasEnded(job)) rows[3][0] = 'Took';
    fill(facts, rows.filter(([, value]) => value).map(([name, value]) => [element('dt', {}, name), element('dd', {}, String(value))]));
    if (job.state === lastState) return;
    lastState = job.state;
    loadTimeline();
    loadLogs();
    if (hasEnded(job)) loadReport();
  }

  async function shown(task, refuse) {
    try {
      await task();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!left) refuse(error);
    }
  }

  const loadTimeline = () => shown(async () => {
    const {rows, slices} = slicesOfTrace(await api.json(`${jobPath(id)}/timeline`));
    chart.forget(-Infinity);
    chart.setRows(rows);
    chart.add(slices);
    chart.showAll();
    timelineNote.hidden = true;
  }, (error) => {
    say(timelineNote, error.message);
    timelineNote.hidden = false;
  });

  const loadLogs = () => shown(async () => say(logs, await api.text(`${jobPath(id)}/logs`) || 'Nothing was written.'),
    (error) => say(logs, error.message));

  const loadReport = () => shown(async () => {
    const document = await api.json(`${jobPath(id)}/report`);
    fill(report, reportParts(document), element('details', {}, element('summary', {}, 'The whole report (JSON)'),
      element('pre', {tabindex: 0}, JSON.stringify(document, null, 2))));
  }, (error) => fill(report, element('p', {class: 'soft'}, error.message)));

  stage.show(id);
  return () => {
    left = true;
    stage.show(null);
    chart.close();
  };
}
