// The chart of who computes what: a row per actor, a slice per micro-step, coloured by job and step. Idle time stays
// empty, and what an actor waits for inside a slice is hatched, so that one sees a pipeline fill and other jobs' work
// in its gaps.
import {element, fill, say} from './dom.js';
import {duration, percent, shortened, significant} from './format.js';
import {Slices, shortTitleOf, titleOf, waited} from './slices.js';

const kRemembered = 120;  // seconds, of a live chart
const kDelay = 0.7;       // seconds behind the server's now: slices come twice a second
const kClocksAgree = 1;   // seconds; more apart, a controller was started again
const kFrame = 50;        // milliseconds between two frames
const kSpans = [1, 2, 5, 15, 60];  // seconds that a live chart may show
const kAxis = 20;         // pixels
const kBusy = 46;

export class PipelineChart {
  /// live: follows the time; else it shows all that it is given. `jobName(id)`: what the legend calls a job.
  constructor({live, jobName = (id) => `job ${id}`}) {
    this.live = live;
    this.jobName = jobName;
    this.rows = [];        // {id, label}
    this.slices = new Slices();
    this.span = window.innerWidth < 500 ? 2 : 5;  // seconds
    this.clocks = new Map();  // of each cluster: its seconds − this page's
    this.held = live ? null : 0;  // the right end, where it does not follow the time
    this.origin = 0;       // of the axis, where it is not live
    this.canvas = element('canvas', {tabindex: 0, role: 'img'});
    this.tip = element('div', {class: 'tip', hidden: true});
    this.legend = element('ul', {class: 'legend'});
    this.empty = element('p', {class: 'soft'},
      live ? 'Nothing is being computed. What is computed while this page is open appears here.' : 'Nothing was recorded.');
    this.box = element('div', {class: 'chart-box'}, this.canvas, this.tip);
    this.node = element('div', {}, this.empty, this.box, this.legend);
    this.controls = element('div', {class: 'row'}, live ? this.liveControls() : this.zoomControls());
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.box);
    this.recolour = () => this.draw();
    window.addEventListener('themechange', this.recolour);
    this.listen();
    if (live) this.animate();
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
    window.removeEventListener('themechange', this.recolour);
  }

  setRows(rows) {
    if (JSON.stringify(rows) === JSON.stringify(this.rows)) return;
    this.rows = rows;
    this.draw();
  }

  /// New slices of a live chart, all of one cluster; `now` is its controller's, on the slices' clock. They are put into
  /// this page's time. The difference stays as it was first seen, so that slices of two events fit together.
  add(slices, now) {
    if (slices.length === 0) return;
    const [, cluster = ''] = String(slices[0].actor).split('-');
    const seen = now - performance.now() / 1000;
    if (!(Math.abs(seen - this.clocks.get(cluster)) < kClocksAgree)) this.clocks.set(cluster, seen);
    this.slices.add(slices, -this.clocks.get(cluster));
    if (this.held === null) this.slices.forgetBefore(this.right() - kRemembered);
    this.empty.hidden = this.slices.count > 0;
  }

  /// What slicesOfTrace() gives, whole.
  showTrace({rows, slices}) {
    this.slices.clear();
    this.slices.add(slices);
    this.empty.hidden = this.slices.count > 0;
    this.rows = rows;
    this.showAll();
  }

  // What the user does.

  liveControls() {
    this.hold = element('button', {
      type: 'button', 'aria-pressed': 'false', onclick: () => this.setHeld(this.held === null),
    }, 'Hold');
    this.spans = element('select', {
      'aria-label': 'Seconds that the chart shows', onchange: () => this.setSpan(Number(this.spans.value)),
    }, kSpans.map((seconds) =>
      element('option', {value: seconds, selected: seconds === this.span}, `${seconds} s`)));
    return [this.spans, this.hold];
  }

  zoomControls() {
    return [['Closer', () => this.zoom(0.5)], ['Farther', () => this.zoom(2)], ['All', () => this.showAll()]]
      .map(([words, onclick]) => element('button', {type: 'button', onclick}, words));
  }

  listen() {
    const keys = {
      'ArrowLeft': () => this.pan(-0.2),
      'ArrowRight': () => this.pan(0.2),
      '+': () => this.zoom(0.5),
      '-': () => this.zoom(2),
      ' ': () => this.live && this.setHeld(this.held === null),
    };
    this.canvas.addEventListener('keydown', (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    let dragged = 0;
    this.canvas.addEventListener('pointerdown', (event) => { dragged = event.offsetX; });
    this.canvas.addEventListener('pointermove', (event) => {
      if (event.buttons === 0) {
        this.point(event);
      } else if (Math.abs(event.offsetX - dragged) > 2) {
        this.pan((dragged - event.offsetX) / this.plot().width);
        dragged = event.offsetX;
      }
    });
    this.canvas.addEventListener('pointerleave', () => { this.tip.hidden = true; });
  }

  setSpan(seconds) {
    this.span = seconds;
    this.draw();
  }

  setHeld(hold) {
    this.held = hold ? this.right() : null;
    this.hold.setAttribute('aria-pressed', String(hold));
    say(this.hold, hold ? 'Go on' : 'Hold');
    this.draw();
  }

  pan(part) {
    if (this.held === null) this.setHeld(true);
    this.held += part * this.span;
    this.draw();
  }

  zoom(factor) {
    const middle = this.right() - this.span / 2;
    if (this.live) {
      const next = kSpans.indexOf(this.span) + (factor > 1 ? 1 : -1);
      this.span = kSpans[Math.min(Math.max(next, 0), kSpans.length - 1)];
      this.spans.value = String(this.span);
    } else {
      this.span = Math.min(Math.max(this.span * factor, 1e-3), 1e5);
    }
    if (this.held !== null) this.held = middle + this.span / 2;
    this.draw();
  }

  showAll() {
    const [begin, end] = this.slices.extent() ?? [0, 1];
    this.origin = begin;
    this.held = end;
    this.setSpan(Math.max(end - begin, 1e-3));
  }

  // What it looks like.

  animate() {
    const isStill = matchMedia('(prefers-reduced-motion: reduce)').matches;
    let last = 0;
    const next = (time) => {
      if (this.held === null && time - last > (isStill ? 1000 : kFrame)) {
        last = time;
        this.draw();
      }
      this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
  }

  /// The time at the right end.
  right() {
    return this.held ?? performance.now() / 1000 - kDelay;
  }

  /// Where slices are drawn, in pixels.
  plot() {
    const row = this.rows.length <= 12 ? 30 : this.rows.length <= 40 ? 16 : 8;
    const width = this.canvas.clientWidth;
    const left = row < 10 ? 0 : width < 500 ? 58 : 96;
    return {row, left, width: Math.max(width - left - kBusy, 10), height: this.rows.length * row};
  }

  draw() {
    const {canvas} = this;
    this.box.hidden = this.rows.length === 0;
    if (this.box.hidden || !canvas.isConnected) return;
    const plot = this.plot();
    const ratio = window.devicePixelRatio || 1;
    const height = plot.height + kAxis;
    canvas.style.height = `${height}px`;
    const size = [canvas.clientWidth, height].map((pixels) => Math.round(pixels * ratio));
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    const scheme = getComputedStyle(document.documentElement).colorScheme;
    this.dark = scheme === 'dark' || (scheme !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
    this.ink = getComputedStyle(canvas).color;
    this.track = this.dark ? '#2a3040' : '#ebe8e2';
    const pen = canvas.getContext('2d');
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, height);
    pen.font = '12px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    const right = this.right();
    const left = right - this.span;
    const jobs = new Set();
    const busy = this.rows.map((row, index) => this.drawRow(pen, plot, row, index * plot.row, {left, right, jobs}));
    this.drawAxis(pen, plot);
    this.describe(busy, jobs);
  }

  /// Returns the part of the time that the actor computed.
  drawRow(pen, plot, row, top, {left, right, jobs}) {
    const x = (seconds) => plot.left + (seconds - left) / this.span * plot.width;
    pen.fillStyle = this.track;
    pen.fillRect(plot.left, top + 1, plot.width, plot.row - 2);
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, top, plot.width, plot.row);
    pen.clip();
    let seconds = 0;
    for (const slice of this.slices.within(row.id, left, right)) {
      seconds += Math.min(slice.end, right) - Math.max(slice.begin, left) - waited(slice, left, right);
      jobs.add(slice.job);
      this.drawSlice(pen, slice, x, top + 1, plot);
    }
    pen.restore();
    const part = Math.max(0, Math.min(1, seconds / this.span));
    if (plot.left > 0) {
      pen.fillStyle = this.ink;
      pen.textAlign = 'left';
      pen.fillText(row.label, 0, top + plot.row / 2, plot.left - 4);
      pen.textAlign = 'right';
      pen.fillText(percent(part), plot.left + plot.width + kBusy - 4, top + plot.row / 2);
    }
    return part;
  }

  /// A job has a hue, and its steps take turns in three shades of it.
  colours(slice) {
    const hue = this.slices.hueOf(slice.job);
    if (slice.kind !== 'step')
      return {body: `hsl(${hue} 25% ${this.dark ? 62 : 50}%)`, words: this.dark ? '#10131a' : '#fff'};
    const light = (this.dark ? 44 : 36) + 13 * (slice.step % 3);
    return {body: `hsl(${hue} 68% ${light}%)`, words: light > 48 ? '#10131a' : '#fff'};
  }

  drawSlice(pen, slice, x, top, plot) {
    const height = plot.row - 2;
    const [begin, end] = [x(slice.begin), x(slice.end)];
    const {body, words} = this.colours(slice);
    pen.fillStyle = body;
    pen.fillRect(begin, top, Math.max(end - begin - (end - begin > 4 ? 1 : 0), 0.5), height);
    let free = begin;  // where the slice's words may begin: behind its first wait
    for (const [from, to] of slice.waits) {
      const width = x(to) - x(from);
      if (width < 0.5) continue;
      for (const style of [this.track, this.hatching(pen, body)]) {
        pen.fillStyle = style;
        pen.fillRect(x(from), top, width, height);
      }
      if (x(from) < free + 3) free = x(to);
    }
    const left = Math.max(free, plot.left) + 3;
    const fits = (text) => pen.measureText(text).width < end - left - 3;
    const title = height < 14 || end - left < 14 ? null : [titleOf(slice), shortTitleOf(slice)].find(fits);
    if (!title) return;
    pen.fillStyle = words;
    pen.textAlign = 'left';
    pen.fillText(title, left, top + height / 2 + 0.5);
  }

  hatching(pen, colour) {
    this.hatchings ??= new Map();
    if (!this.hatchings.has(colour)) {
      const tile = element('canvas', {width: 6, height: 6});
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
    const least = this.span / Math.max(2, plot.width / 110);
    const power = 10 ** Math.floor(Math.log10(least));
    const unit = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= least);
    const right = this.right();
    const zero = this.live ? right : this.origin;
    const bottom = plot.height + kAxis / 2 + 1;
    pen.fillStyle = this.ink;
    pen.textAlign = 'center';
    for (let i = Math.ceil((right - this.span - zero) / unit); i * unit <= right - zero + 1e-9; i += 1) {
      const at = plot.left + (i * unit + zero - right + this.span) / this.span * plot.width;
      pen.globalAlpha = 0.25;
      pen.fillRect(at, 0, 1, plot.height);
      pen.globalAlpha = 1;
      const words = i !== 0 || !this.live ? `${significant(i * unit)} s` : this.held === null ? 'now' : 'held';
      pen.fillText(words, Math.min(Math.max(at, plot.left + 12), plot.left + plot.width - 12), bottom);
    }
    pen.textAlign = 'right';
    if (plot.left > 0) pen.fillText('busy', plot.left + plot.width + kBusy - 4, bottom);
  }

  /// The legend; and, every five seconds, the same in words for who cannot see the picture.
  describe(busy, jobs) {
    const names = [...jobs].sort((a, b) => String(a).localeCompare(String(b), undefined, {numeric: true}))
      .map((job) => [job, shortened(this.jobName(job), 40)]);
    const shown = JSON.stringify([names, this.dark]);
    if (shown !== this.inLegend) {
      this.inLegend = shown;
      fill(this.legend, names.map(([job, name]) => {
        const swatch = element('span', {class: 'swatch'});
        swatch.style.background = `hsl(${this.slices.hueOf(job)} 68% ${this.dark ? 50 : 45}%)`;
        return element('li', {}, swatch, name);
      }), element('li', {}, '3·1: step 3, patch 1, both counted from 0'),
      element('li', {}, element('span', {class: 'swatch wait'}), 'waits for another actor'),
      element('li', {}, element('span', {class: 'swatch idle'}), 'idle'));
    }
    const now = Math.floor(performance.now() / 5000);
    if (this.live && now === this.describedAt) return;
    this.describedAt = now;
    const rows = this.rows.slice(0, 16).map((row, index) => `${row.label}: busy ${percent(busy[index])}`).join(', ');
    this.canvas.setAttribute('aria-label', `What each actor computed in ${duration(this.span)}. ${rows}. `
      + `Arrow keys move, plus and minus change the scale${this.live ? ', space holds' : ''}.`);
  }

  /// Tells of the slice below the pointer.
  point({offsetX, offsetY}) {
    const plot = this.plot();
    const row = this.rows[Math.floor(offsetY / plot.row)];
    const at = this.right() - this.span + (offsetX - plot.left) / plot.width * this.span;
    const [slice] = row ? this.slices.within(row.id, at, at) : [];
    this.tip.hidden = !slice;
    if (!slice) return;
    const seconds = waited(slice);
    say(this.tip, [
      `${row.label}, ${shortened(this.jobName(slice.job), 60)}`,
      titleOf(slice),
      duration(slice.end - slice.begin),
      seconds > 0 && `of these ${duration(seconds)} waiting`,
    ].filter(Boolean).join('\n'));
    this.tip.style.left = `${Math.min(offsetX + 12, Math.max(0, this.canvas.clientWidth - 200))}px`;
    this.tip.style.top = `${offsetY + 14}px`;
  }
}
