// What actors computed: slices of time, each {actor, job, step, patch, kind, begin, end, waits: [[begin, end]]}, in
// seconds. kind is step, text, decode, load, …; step and patch count from 0, a patch below 0 is the whole picture.

const kHues = [212, 28, 150, 285, 352, 55, 182, 320];
const kMost = 60000;

const kKinds = {text: 'text', decode: 'pixels'};

/// What a slice is, for people.
export function titleOf({kind, step, patch}) {
  if (kind !== 'step') return kKinds[kind] ?? kind;
  return `step ${step}${patch >= 0 ? ` patch ${patch}` : ''}`;
}

/// The same where there is little room.
export function shortTitleOf({kind, step, patch}) {
  if (kind !== 'step') return kKinds[kind] ?? kind;
  return patch >= 0 ? `${step}·${patch}` : String(step);
}

/// Seconds of a slice that its actor waited for others, within [from, to].
export function waited(slice, from = -Infinity, to = Infinity) {
  return slice.waits.reduce(
    (sum, [begin, end]) => sum + Math.max(0, Math.min(end, to) - Math.max(begin, from)), 0);
}

export class Slices {
  constructor() {
    this.clear();
    this.hues = new Map();  // job → hue, in the order of their first slices
  }

  clear() {
    this.actors = new Map();  // id as text → slices, in the order of their ends
    this.count = 0;
  }

  /// With `shift` seconds added to their times. Those that are there already, after a stream was connected again, are
  /// left out.
  add(slices, shift = 0) {
    for (const given of slices) {
      const slice = {
        ...given, begin: given.begin + shift, end: given.end + shift,
        waits: (given.waits ?? []).map((wait) => wait.map((time) => time + shift)),
      };
      const row = this.of(slice.actor);
      const isKnown = (one) => Math.abs(one.begin - slice.begin) < 1e-6 && one.job === slice.job;
      if (row.length > 0 && slice.begin < row.at(-1).end - 1e-6 && row.some(isKnown)) continue;
      row.push(slice);
      this.count += 1;
      if (!this.hues.has(slice.job)) this.hues.set(slice.job, kHues[this.hues.size % kHues.length]);
    }
    if (this.count > kMost) this.keep((row) => row.slice(row.length / 2));
  }

  forgetBefore(time) {
    this.keep((row) => row.filter((slice) => slice.end >= time));
  }

  keep(kept) {
    this.count = 0;
    for (const [actor, row] of this.actors) {
      this.actors.set(actor, kept(row));
      this.count += this.actors.get(actor).length;
    }
  }

  of(actor) {
    const key = String(actor);
    if (!this.actors.has(key)) this.actors.set(key, []);
    return this.actors.get(key);
  }

  /// An actor's slices that touch [from, to], the newest first.
  * within(actor, from, to) {
    const row = this.of(actor);
    for (let i = row.length - 1; i >= 0 && row[i].end >= from; i -= 1)
      if (row[i].begin <= to) yield row[i];
  }

  hueOf(job) {
    return this.hues.get(job);
  }

  /// [first begin, last end]; null of nothing.
  extent() {
    const all = [...this.actors.values()].flat();
    if (all.length === 0) return null;
    return [all.reduce((least, {begin}) => Math.min(least, begin), Infinity),
      all.reduce((most, {end}) => Math.max(most, end), -Infinity)];
  }
}

/// A job's Chrome trace: its slices, and a row {id, label} for each actor.
export function slicesOfTrace(trace) {
  const kinds = {text: 'text', decode: 'decode', micro_step: 'step'};
  const newest = new Map();  // actor → slice: waits follow the slice that they are in
  const slices = [];
  for (const event of trace.traceEvents ?? []) {
    if (event.ph !== 'X') continue;
    const actor = String(event.tid - 1);
    const [begin, end] = [event.ts * 1e-6, (event.ts + event.dur) * 1e-6];
    if (event.cat === 'wait') newest.get(actor)?.waits.push([begin, end]);
    if (!kinds[event.cat]) continue;
    const number = (what) => Number(new RegExp(`${what} (\\d+)`).exec(event.name)?.[1] ?? -1);
    newest.set(actor, {
      actor, job: String(event.args?.job ?? ''), kind: kinds[event.cat], step: number('step'), patch: number('patch'),
      begin, end, waits: [],
    });
    slices.push(newest.get(actor));
  }
  slices.sort((a, b) => a.end - b.end);
  const rows = [...newest.keys()].sort((a, b) => a - b).map((id) => ({id, label: `Actor ${id}`}));
  return {rows, slices};
}
