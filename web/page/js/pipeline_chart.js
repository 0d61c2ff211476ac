// The chart of who computes what: a row per actor, a slice per micro-step, coloured by job and step. Idle time stays
// empty, and what an actor waits for inside a slice is hatched, so that one sees a pipeline fill and other jobs' work in
// its gaps.
import {element, fill, say} from './dom.js';
import {duration, percent, shortened, significant} from './format.js';

const kHues = [212, 28, 150, 285, 352, 55, 182, 320];
const kMostSlices = 60000;
const kRemembered = 120;   // seconds, of a live chart
const kDelay = 0.7;        // seconds behind the server's now: slices come twice a second
const kFrame = 50;         // milliseconds between two frames
const kAxis = 20;
const kBusy = 46;
const kSpans = [1, 2, 5, 15, 60];
const kKinds = {text: 'text', decode: 'pixels', load: 'load', encode: 'encode'};

/// What a slice is, for people.
function titleOf(slice) {
  if (slice.kind !== 'step') return kKinds[slice.kind] ?? slice.kind;
  return `step ${slice.step}${slice.patch >= 0 ? ` patch ${slice.patch}` : ''}`;
}

export class PipelineChart {
  /// live: follows the time; else it shows all that it is given. `jobName(id)`: what the legend calls a job.
  constructor({live, jobName = (id) => `job ${id}`}) {
    this.live = live;
    this.jobName = jobName;
    this.rows = [];        // {id, label}
    this.slices = new Map();
    this.count = 0;
    this.hues = new Map();  // job → hue, in the order of their first slices
    this.span = window.innerWidth < 500 ? 2 : 5;
    this.clock = null;     // server's seconds − this page's
    this.frozen = live ? null : 0;  // the right end, where it does not follow the time
    this.canvas = element('canvas', {tabindex: 0, role: 'img'});
    this.tip = element('div', {class: 'tip', hidden: true});
    this.legend = element('ul', {class: 'legend'});
    this.empty = element('p', {class: 'soft'}, live ? 'Nothing has been computed yet: paint something.' : 'Nothing was recorded.');
    this.head = element('div', {class: 'row'}, this.controls());
    this.box = element('div', {class: 'chart-box'}, this.canvas, this.tip);
    this.node = element('div', {}, this.empty, this.box, this.legend);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.box);
    this.listen();
  }

  controls() {
    if (!this.live) {
      return [element('button', {type: 'button', onclick: () => this.zoom(0.5)}, 'Closer'),
        element('button', {type: 'button', onclick: () => this.zoom(2)}, 'Farther'),
        element('button', {type: 'button', onclick: () => this.showAll()}, 'All')];
    }
    this.pause = element('button', {type: 'button', 'aria-pressed': 'false',
                                    onclick: () => this.freeze(this.frozen === null)}, 'Hold');
    this.spans = element('select', {'aria-label': 'Seconds that the chart shows',
      onchange: () => this.setSpan(Number(this.spans.value))},
      kSpans.map((seconds) => element('option', {value: seconds, selected: seconds === this.span}, duration(seconds))));
    return [this.spans, this.pause];
  }

  listen() {
    this.canvas.addEventListener('keydown', (event) => {
      const actions = {ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), '+': () => this.zoom(0.5),
                       '-': () => this.zoom(2), ' ': () => this.live && this.freeze(this.frozen === null)};
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    });
    let dragged = null;
    this.canvas.addEventListener('pointerdown', (event) => { dragged = event.offsetX; });
    this.canvas.addEventListener('pointermove', (event) => {
      if (dragged === null || event.buttons === 0) {
        dragged = null;
        this.point(event);
        return;
      }
      if (Math.abs(event.offsetX - dragged) < 3) return;
      this.pan((dragged - event.offsetX) / this.plot().width);
      dragged = event.offsetX;
    });
    this.canvas.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    this.recolour = () => this.draw();
    window.addEventListener('themechange', this.recolour);
    if (this.live) this.animate();
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
    window.removeEventListener('themechange', this.recolour);
  }

  animate() {
    const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
    let last = 0;
    const next = (time) => {
      if (this.frozen === null && time - last > (still ? 1000 : kFrame)) {
        last = time;
        this.draw();
      }
      this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
  }

  setRows(rows) {
    if (JSON.stringify(rows) === JSON.stringify(this.rows)) return;
    this.rows = rows;
    this.draw();
  }

  /// Slices in seconds: {actor, job, step, patch, kind, begin, end, waits: [[begin, end]]}; `now` on the same clock.
  add(slices, now) {
    if (now !== undefined) {
      const clock = now - performance.now() / 1000;
      // A server that was started again counts from another beginning.
      if (this.clock !== null && Math.abs(clock - this.clock) > 5) this.forget(-Infinity);
      this.clock = this.clock === null || Math.abs(clock - this.clock) > 1 ? clock : this.clock + 0.1 * (clock - this.clock);
    }
    for (const slice of slices) {
      const actor = String(slice.actor);
      if (!this.slices.has(actor)) this.slices.set(actor, []);
      const row = this.slices.get(actor);
      const last = row.at(-1);
      if (last && slice.end <= last.end && row.some((one) => one.begin === slice.begin && one.job === slice.job)) continue;
      row.push(slice);
      this.count += 1;
      if (!this.hues.has(slice.job)) this.hues.set(slice.job, kHues[this.hues.size % kHues.length]);
    }
    if (this.live && (now !== undefined && this.frozen === null || this.count > kMostSlices)) this.forget((now ?? this.right()) - kRemembered);
    this.empty.hidden = this.count > 0;
  }

  forget(before) {
    if (before === -Infinity) this.slices.clear();
    this.count = 0;
    for (const [actor, row] of this.slices) {
      const kept = row.slice(Math.max(row.findIndex((slice) => slice.end >= before), 0, row.length - kMostSlices / this.slices.size));
      this.slices.set(actor, kept);
      this.count += kept.length;
    }
  }

  showAll() {
    const all = [...this.slices.values()].flat();
    const begin = Math.min(...all.map((slice) => slice.begin));
    const end = Math.max(...all.map((slice) => slice.end));
    if (!Number.isFinite(begin)) return;
    this.origin = begin;
    this.frozen = end;
    this.span = Math.max(end - begin, 1e-3);
    this.draw();
  }

  setSpan(seconds) {
    this.span = seconds;
    this.draw();
  }

  freeze(hold) {
    this.frozen = hold ? this.right() : null;
    this.pause.setAttribute('aria-pressed', String(hold));
    say(this.pause, hold ? 'Go on' : 'Hold');
    this.draw();
  }

  pan(part) {
    if (this.live && this.frozen === null) this.freeze(true);
    this.frozen += part * this.span;
    this.draw();
  }

  zoom(factor) {
    const middle = this.right() - this.span / 2;
    if (this.live) {
      const place = Math.min(Math.max(kSpans.indexOf(this.span) + (factor > 1 ? 1 : -1), 0), kSpans.length - 1);
      this.span = kSpans[place];
      this.spans.value = String(this.span);
    } else {
      this.span = Math.min(Math.max(this.span * factor, 1e-3), 1e5);
    }
    if (this.frozen !== null) this.frozen = middle + this.span / 2;
    this.draw();
  }

  right() {
    return this.frozen ?? (this.clock === null ? 0 : performance.now() / 1000 + this.clock - kDelay);
  }

  rowHeight() {
    return this.rows.length <= 12 ? 30 : this.rows.length <= 40 ? 16 : 8;
  }

  plot() {
    const width = this.canvas.clientWidth;
    const left = this.rowHeight() < 10 ? 0 : width < 500 ? 58 : 96;
    return {left, width: Math.max(width - left - kBusy, 10), height: this.rows.length * this.rowHeight()};
  }

  draw() {
    const {canvas} = this;
    this.box.hidden = this.rows.length === 0;
    if (this.box.hidden || !canvas.isConnected) return;
    const ratio = window.devicePixelRatio || 1;
    const plot = this.plot();
    const height = plot.height + kAxis;
    canvas.style.height = `${height}px`;
    const [wide, high] = [Math.round(canvas.clientWidth * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const style = getComputedStyle(document.documentElement);
    this.dark = style.colorScheme.includes('dark') && (style.colorScheme === 'dark' || matchMedia('(prefers-color-scheme: dark)').matches);
    this.ink = getComputedStyle(canvas).color;
    const pen = canvas.getContext('2d');
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, height);
    pen.font = '12px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    const busy = this.rows.map((row, index) => this.drawRow(pen, plot, row, index));
    this.drawAxis(pen, plot);
    this.describe(busy);
  }

  drawRow(pen, plot, row, index) {
    const size = this.rowHeight();
    const top = index * size;
    const right = this.right();
    const left = right - this.span;
    const x = (seconds) => plot.left + (seconds - left) / this.span * plot.width;
    pen.fillStyle = this.dark ? '#2a3040' : '#ebe8e2';
    pen.fillRect(plot.left, top + 1, plot.width, size - 2);
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, top, plot.width, size);
    pen.clip();
    let busy = 0;
    const slices = this.slices.get(String(row.id)) ?? [];
    for (let i = slices.length - 1; i >= 0; i -= 1) {
      const slice = slices[i];
      if (slice.end < left && slice.end < left - 30) break;
      if (slice.end < left || slice.begin > right) continue;
      busy += Math.min(slice.end, right) - Math.max(slice.begin, left);
      for (const [begin, end] of slice.waits ?? [])
        busy -= Math.max(0, Math.min(end, right) - Math.max(begin, left));
      this.drawSlice(pen, slice, x, top + 1, size - 2);
    }
    pen.restore();
    const part = Math.max(0, Math.min(1, busy / this.span));
    if (size >= 10) {
      pen.fillStyle = this.ink;
      pen.textAlign = 'left';
      pen.fillText(row.label, 0, top + size / 2, plot.left - 4);
      pen.textAlign = 'right';
      pen.fillText(percent(part), plot.left + plot.width + kBusy - 4, top + size / 2);
    }
    return part;
  }

  colour(slice) {
    const hue = this.hues.get(slice.job);
    if (slice.kind !== 'step') return {fill: `hsl(${hue} 25% ${this.dark ? 62 : 50}%)`, text: this.dark ? '#10131a' : '#fff'};
    const shade = (slice.step % 3) * 13;
    const light = (this.dark ? 44 : 36) + shade;
    return {fill: `hsl(${hue} 68% ${light}%)`, text: light > 48 ? '#10131a' : '#fff'};
  }

  drawSlice(pen, slice, x, top, height) {
    const begin = x(slice.begin);
    const width = Math.max(x(slice.end) - begin, 0.5);
    const {fill: colour, text} = this.colour(slice);
    pen.fillStyle = colour;
    pen.fillRect(begin, top, Math.max(width - (width > 4 ? 1 : 0), 0.5), height);
    for (const [from, to] of slice.waits ?? []) {
      if (x(to) - x(from) < 0.5) continue;
      pen.fillStyle = this.dark ? '#2a3040' : '#ebe8e2';
      pen.fillRect(x(from), top, x(to) - x(from), height);
      pen.fillStyle = this.hatching(pen, colour);
      pen.fillRect(x(from), top, x(to) - x(from), height);
    }
    if (height < 14 || width < 22) return;
    const short = slice.kind === 'step' ? `${slice.step}${slice.patch >= 0 ? `·${slice.patch}` : ''}` : titleOf(slice);
    const full = titleOf(slice);
    const waited = (slice.waits ?? []).filter(([from]) => from <= slice.begin + 1e-6).reduce((sum, [from, to]) => sum + to - from, 0);
    const from = Math.max(begin + waited / this.span * this.plot().width, this.plot().left);
    const room = begin + width - from - 6;
    const words = pen.measureText(full).width < room ? full : pen.measureText(short).width < room ? short : '';
    pen.fillStyle = text;
    pen.textAlign = 'left';
    if (words) pen.fillText(words, from + 3, top + height / 2 + 0.5);
  }

  hatching(pen, colour) {
    this.hatchings ??= new Map();
    if (!this.hatchings.has(colour)) {
      const tile = document.createElement('canvas');
      [tile.width, tile.height] = [6, 6];
      const tilePen = tile.getContext('2d');
      tilePen.strokeStyle = colour;
      tilePen.lineWidth = 1.5;
      for (const shift of [-6, 0, 6]) {
        tilePen.moveTo(shift, 6);
        tilePen.lineTo(shift + 6, 0);
      }
      tilePen.stroke();
      this.hatchings.set(colour, pen.createPattern(tile, 'repeat'));
    }
    return this.hatchings.get(colour);
  }

  drawAxis(pen, plot) {
    const ideal = this.span / Math.max(2, plot.width / 110);
    const power = 10 ** Math.floor(Math.log10(ideal));
    const unit = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= ideal);
    const right = this.right();
    const zero = this.live ? right : this.origin ?? 0;
    pen.fillStyle = this.ink;
    pen.textAlign = 'center';
    const first = Math.ceil((right - this.span - zero) / unit);
    for (let i = first; i * unit <= right - zero + 1e-9; i += 1) {
      const at = plot.left + (i * unit + zero - right + this.span) / this.span * plot.width;
      pen.globalAlpha = 0.25;
      pen.fillRect(at, 0, 1, plot.height);
      pen.globalAlpha = 1;
      const words = i === 0 && this.live ? (this.frozen === null ? 'now' : 'held') : `${significant(i * unit)} s`;
      pen.fillText(words, Math.min(Math.max(at, plot.left + 12), plot.left + plot.width - 12), plot.height + kAxis / 2 + 1);
    }
    pen.textAlign = 'right';
    if (this.rowHeight() >= 10) pen.fillText('busy', plot.left + plot.width + kBusy - 4, plot.height + kAxis / 2 + 1);
  }

  /// Legend, and the same in words for who cannot see the picture.
  describe(busy) {
    const left = this.right() - this.span;
    const jobs = new Set();
    for (const row of this.slices.values()) {
      for (let i = row.length - 1; i >= 0 && row[i].end >= left; i -= 1)
        if (row[i].begin <= this.right()) jobs.add(row[i].job);
    }
    const names = [...jobs].sort((a, b) => String(a).localeCompare(String(b), undefined, {numeric: true}))
      .map((job) => [job, shortened(this.jobName(job), 40)]);
    const key = JSON.stringify([names, this.dark]);
    if (key !== this.legendKey) {
      this.legendKey = key;
      const swatch = (name, colour) => {
        const node = element('span', {class: `swatch ${name}`});
        if (colour) node.style.background = colour;
        return node;
      };
      fill(this.legend, names.map(([job, name]) =>
        element('li', {}, swatch('', `hsl(${this.hues.get(job)} 68% ${this.dark ? 50 : 45}%)`), name)),
        element('li', {}, '3·1 is step 3, patch 1, counted from 0'),
        element('li', {}, swatch('wait'), 'waits for another actor'), element('li', {}, swatch('idle'), 'idle'));
    }
    const second = Math.floor(performance.now() / 5000);
    if (second === this.described && this.live) return;
    this.described = second;
    this.canvas.setAttribute('aria-label', `What each actor computed in ${duration(this.span)}. ${this.rows.slice(0, 16)
      .map((row, index) => `${row.label}: busy ${percent(busy[index])}`).join(', ')}. Arrow keys move, plus and minus change the scale${this.live ? ', space holds' : ''}.`);
  }

  point(event) {
    const plot = this.plot();
    const row = this.rows[Math.floor(event.offsetY / this.rowHeight())];
    const at = this.right() - this.span + (event.offsetX - plot.left) / plot.width * this.span;
    const slice = row && (this.slices.get(String(row.id)) ?? []).findLast((one) => one.begin <= at && at <= one.end);
    this.tip.hidden = !slice;
    if (!slice) return;
    const waited = (slice.waits ?? []).reduce((sum, [from, to]) => sum + to - from, 0);
    say(this.tip, [`${row.label}, ${shortened(this.jobName(slice.job), 60)}`, titleOf(slice), duration(slice.end - slice.begin),
      waited > 0 ? `of these ${duration(waited)} waiting` : ''].filter(Boolean).join('\n'));
    this.tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, this.canvas.clientWidth - 200))}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }
}

/// A job's Chrome trace as slices and rows.
export function slicesOfTrace(trace) {
  const kinds = {text: 'text', decode: 'decode', micro_step: 'step'};
  const rows = new Map();
  const slices = [];
  const last = new Map();
  for (const event of trace.traceEvents ?? []) {
    const actor = String(event.tid - 1);
    if (event.ph !== 'X') continue;
    const [begin, end] = [event.ts * 1e-6, (event.ts + event.dur) * 1e-6];
    if (event.cat === 'wait') {
      last.get(actor)?.waits.push([begin, end]);
    } else if (kinds[event.cat]) {
      const number = (what) => Number(new RegExp(`${what} (\\d+)`).exec(event.name)?.[1] ?? -1);
      const slice = {actor, job: String(event.args?.job ?? ''), kind: kinds[event.cat], step: number('step'),
                     patch: number('patch'), begin, end, waits: []};
      slices.push(slice);
      last.set(actor, slice);
      rows.set(actor, {id: actor, label: `Actor ${actor}`});
    }
  }
  slices.sort((a, b) => a.end - b.end);
  return {rows: [...rows.values()].sort((a, b) => Number(a.id) - Number(b.id)), slices};
}
