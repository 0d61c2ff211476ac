// The view of the cluster: how it is, what its actors compute at this moment, and who they are.
import {ApiError, api, listen} from './api.js';
import {Table, confirmed, element, fill, panel, say} from './dom.js';
import {bytes, counted, duration} from './format.js';
import {PipelineChart} from './pipeline_chart.js';
import {inPageWords} from './words.js';

const kAxes = {
  dp: 'replica',
  cfg: 'guidance branch',
  pp: 'pipeline stage',
  ulysses: 'part of the heads',
  ring: 'part of the picture',
  tp: 'part of each block',
  vae: 'part of the decoding',
};

/// "pipeline stage 2 of 4": an actor's places in the groups that it shares with others.
function placesOf(actor) {
  const shared = (actor.groups ?? []).filter((group) => group.ranks.length > 1);
  return shared.map((group) => `${kAxes[group.axis] ?? group.axis} ${group.rank + 1} of ${group.ranks.length}`)
    .join(', ');
}

/// A figure with its name; `value` is to be filled.
function tile(name) {
  const value = element('dd', {}, '–');
  return {node: element('div', {}, element('dt', {}, name), value), value};
}

/// Names of jobs for the chart's legend. Those that are not known are asked for, all at once.
class JobNames {
  constructor() {
    this.names = new Map();
  }

  of(id) {
    return this.names.get(String(id)) ?? `job ${id}`;
  }

  async learn(slices) {
    const ids = new Set(slices.map(({job}) => String(job)).filter((id) => !this.names.has(id)));
    if (ids.size === 0) return;
    for (const id of ids) this.names.set(id, `job ${id}`);
    const {jobs} = await api.json('/api/v1/jobs?limit=50').catch(() => ({jobs: []}));
    for (const {id, prompt} of jobs) this.names.set(String(id), `job ${id}: ${prompt}`);
  }
}

export function clusterView(place) {
  const tiles = {
    actors: tile('Actors ready'),
    jobs: tile('Jobs painting'),
    queue: tile('Jobs waiting'),
    uptime: tile('Up for'),
    version: tile('Version'),
  };
  const jobNames = new JobNames();
  const chart = new PipelineChart({live: true, jobName: (id) => jobNames.of(id)});
  const note = element('p', {role: 'status'});
  const failures = element('ul');
  const noFailures = element('p', {class: 'soft'}, 'None.');

  async function kill(actor) {
    const question = `Kill actor ${actor}? Its jobs go on from their last step when another has taken its place.`;
    if (!await confirmed(question, 'Kill it')) return;
    try {
      await api.post(`/api/v1/actors/${encodeURIComponent(actor)}/kill`);
      say(note, `Actor ${actor} was killed. Another takes its place.`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      say(note, `Actor ${actor} was not killed: ${error.message}.`);
    }
  }

  function makeRow([id, state, host, device, doing, memory, places, restarts, action], {id: actorId}) {
    const used = element('span');
    const meter = element('div', {class: 'meter'}, element('div'));
    fill(memory, element('div', {}, used, meter));
    fill(action, element('button', {
      type: 'button', class: 'danger', 'aria-label': `Kill actor ${actorId}`, onclick: () => kill(actorId),
    }, 'Kill'));
    return (actor) => {
      say(id, String(actor.id));
      if (state.textContent !== actor.state)
        fill(state, element('span', {class: `state ${actor.state}`}, actor.state));
      say(host, actor.host ?? '');
      say(device, actor.device ?? '');
      say(doing, actor.doing || 'nothing');
      const count = actor.device_memory_bytes || actor.memory_bytes;
      const limit = actor.memory_limit_bytes;
      say(used, count ? bytes(count) + (limit ? ` of ${bytes(limit)}` : '') : 'not known');
      meter.hidden = !count || !limit;
      if (!meter.hidden) meter.firstChild.style.width = `${Math.min(100, 100 * count / limit)}%`;
      say(places, placesOf(actor) || 'alone');
      say(restarts, String(actor.restarts ?? 0));
    };
  }

  const table = new Table([
    {head: 'Actor'}, {head: 'State'}, {head: 'Host'}, {head: 'Device'}, {head: 'Doing'}, {head: 'Memory'},
    {head: 'Place in its groups'}, {head: 'Restarts', number: true}, {head: ''},
  ], makeRow);

  function showCluster(cluster) {
    const actors = cluster.actors ?? [];
    const ready = actors.filter(({state}) => state === 'ready' || state === 'busy').length;
    const hosts = new Set(actors.map(({host}) => host)).size;
    fill(tiles.actors.value, `${ready} `, element('small', {}, `of ${actors.length} on ${counted(hosts, 'host')}`));
    say(tiles.jobs.value, String(cluster.jobs?.running ?? 0));
    say(tiles.queue.value, String(cluster.jobs?.queued ?? 0));
    say(tiles.uptime.value, duration(cluster.uptime_seconds));
    say(tiles.version.value, cluster.version ?? '');
    chart.setRows(actors.map(({id}) => ({id, label: `Actor ${id}`})));
    table.show(actors);
    const causes = cluster.recent_failures ?? [];
    noFailures.hidden = causes.length > 0;
    fill(failures, causes.map((cause) => element('li', {}, inPageWords(cause))));
  }

  fill(place,
    element('h1', {class: 'unseen'}, 'Cluster'),
    element('dl', {class: 'tiles'}, Object.values(tiles).map(({node}) => node)),
    panel('What the actors compute', chart.controls, chart.node),
    panel('Actors', null,
      element('p', {class: 'soft small'}, 'An actor is a process that computes on one device. If one is killed, '
        + 'Troupe starts another in its place, and its jobs go on.'),
      note, table.node),
    panel('Latest failures', null, noFailures, failures));

  const refused = (error) => error.status > 0 && say(note, error.message);
  const stopCluster = listen('/api/v1/cluster/events', (event, data) => {
    if (event === 'cluster') showCluster(data);
  }, refused);
  const stopSlices = listen('/api/v1/pipeline/events', (event, data) => {
    if (event !== 'slices') return;
    chart.add(data.slices ?? [], data.now);
    jobNames.learn(data.slices ?? []);
  }, refused);
  return () => {
    stopCluster();
    stopSlices();
    chart.close();
  };
}
