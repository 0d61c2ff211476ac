// The view of the cluster: how it is, what its actors compute at this moment, and who they are.
import {ApiError, api, listen} from './api.js';
import {KeyedList, confirmed, element, fill, say} from './dom.js';
import {bytes, counted, duration} from './format.js';
import {PipelineChart} from './pipeline_chart.js';

const kAxes = {dp: 'replica', cfg: 'guidance branch', pp: 'pipeline stage', ulysses: 'part of the heads',
               ring: 'part of the picture', tp: 'part of each block', vae: 'part of the decoding'};

/// "pipeline stage 2 of 4": an actor's places in the groups that it shares with others.
function placesOf(actor) {
  return (actor.groups ?? []).filter((group) => group.ranks.length > 1)
    .map((group) => `${kAxes[group.axis] ?? group.axis} ${group.rank + 1} of ${group.ranks.length}`).join(', ');
}

function tile(name) {
  const value = element('dd', {}, '–');
  return {node: element('div', {}, element('dt', {}, name), value), value};
}

export function clusterView(place) {
  const tiles = {actors: tile('Actors ready'), jobs: tile('Jobs painting'), queue: tile('Jobs waiting'),
                 uptime: tile('Up for'), version: tile('Version')};
  const jobNames = new Map();
  const chart = new PipelineChart({live: true, jobName: (id) => jobNames.get(String(id)) ?? `job ${id}`});
  const note = element('p', {role: 'status'});
  const body = element('tbody');
  const failures = element('ul');
  const noFailures = element('p', {class: 'soft'}, 'None.');
  const heads = ['Actor', 'State', 'Host', 'Device', 'Doing', 'Memory', 'Place in its groups', 'Restarts', ''];
  fill(place,
    element('h1', {class: 'unseen'}, 'Cluster'),
    element('dl', {class: 'tiles'}, Object.values(tiles).map(({node}) => node)),
    element('section', {class: 'panel', 'aria-labelledby': 'now-title'},
      element('div', {class: 'chart-head'}, element('h2', {id: 'now-title'}, 'What the actors compute'), chart.head),
      chart.node),
    element('section', {class: 'panel', 'aria-labelledby': 'actors-title'},
      element('h2', {id: 'actors-title'}, 'Actors'),
      element('p', {class: 'soft small'}, 'An actor is a process that computes on one device. If one is killed, Troupe starts another in its place, and its jobs go on.'),
      note,
      element('div', {class: 'table-box'}, element('table', {class: 'narrow'},
        element('thead', {}, element('tr', {}, heads.map((head) => element('th', {scope: 'col', class: head === 'Restarts' ? 'number' : null},
          head || element('span', {class: 'unseen'}, 'Action'))))), body))),
    element('section', {class: 'panel', 'aria-labelledby': 'failures-title'},
      element('h2', {id: 'failures-title'}, 'Latest failures'), noFailures, failures));

  async function kill(actor) {
    if (!await confirmed(`Kill actor ${actor}? Its jobs go on from their last step when another has taken its place.`, 'Kill it')) return;
    try {
      await api.post(`/api/v1/actors/${encodeURIComponent(actor)}/kill`);
      say(note, `Actor ${actor} was killed. Another takes its place.`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      say(note, `Actor ${actor} was not killed: ${error.message}.`);
    }
  }

  function makeRow({id}) {
    const cells = heads.map((head) => element('td', {'data-head': head, class: head === 'Restarts' ? 'number' : null}));
    cells.at(-1).append(element('button', {type: 'button', class: 'danger', 'aria-label': `Kill actor ${id}`, onclick: () => kill(id)}, 'Kill'));
    cells[5].append(element('div', {}, element('span'), element('div', {class: 'meter', hidden: true}, element('div'))));
    return element('tr', {}, cells);
  }

  function updateRow(row, actor) {
    const [id, state, host, device, doing, memory, groups, restarts] = row.children;
    say(id, String(actor.id));
    if (state.textContent !== actor.state) fill(state, element('span', {class: `state ${actor.state}`}, actor.state));
    say(host, actor.host ?? '');
    say(device, actor.device ?? '');
    say(doing, actor.doing || 'nothing');
    const used = actor.device_memory_bytes ?? actor.memory_bytes;
    const [text, meter] = memory.firstChild.children;
    say(text, used ? `${bytes(used)}${actor.memory_limit_bytes ? ` of ${bytes(actor.memory_limit_bytes)}` : ''}` : 'not known');
    meter.hidden = !used || !actor.memory_limit_bytes;
    if (!meter.hidden) meter.firstChild.style.width = `${Math.min(100, 100 * used / actor.memory_limit_bytes)}%`;
    say(groups, placesOf(actor) || 'alone');
    say(restarts, String(actor.restarts ?? 0));
  }

  const rows = new KeyedList(body, makeRow, updateRow);

  function showCluster(cluster) {
    const actors = cluster.actors ?? [];
    const ready = actors.filter(({state}) => state === 'ready' || state === 'busy').length;
    fill(tiles.actors.value, `${ready} `, element('small', {}, `of ${actors.length} on ${counted((cluster.hosts ?? []).length || 1, 'host')}`));
    say(tiles.jobs.value, String(cluster.jobs?.running ?? 0));
    say(tiles.queue.value, String(cluster.jobs?.queued ?? 0));
    say(tiles.uptime.value, duration(cluster.uptime_seconds));
    say(tiles.version.value, cluster.version ?? '');
    chart.setRows(actors.map(({id}) => ({id, label: `Actor ${id}`})));
    rows.show(actors);
    const causes = cluster.recent_failures ?? [];
    noFailures.hidden = causes.length > 0;
    if (failures.children.length !== causes.length || failures.firstChild?.textContent !== causes[0])
      fill(failures, causes.map((cause) => element('li', {}, typeof cause === 'string' ? cause : JSON.stringify(cause))));
  }

  async function nameJobs(slices) {
    if (slices.every(({job}) => jobNames.has(String(job)))) return;
    for (const {job} of slices)
      if (!jobNames.has(String(job))) jobNames.set(String(job), `job ${job}`);
    const {jobs} = await api.json('/api/v1/jobs?limit=50').catch(() => ({jobs: []}));
    for (const {id, prompt} of jobs) jobNames.set(String(id), `job ${id}: ${prompt}`);
  }

  const refused = (error) => error.status > 0 && say(note, error.message);
  const stopCluster = listen('/api/v1/cluster/events', (event, data) => {
    if (event === 'cluster') showCluster(data);
  }, refused);
  const stopSlices = listen('/api/v1/pipeline/events', (event, data) => {
    if (event !== 'slices') return;
    chart.add(data.slices ?? [], data.now);
    nameJobs(data.slices ?? []);
  }, refused);
  return () => {
    stopCluster();
    stopSlices();
    chart.close();
  };
}
