// Lines over time, as SVG: a few series, their newest values in the legend, a value at the pointer.
import {element, fill, say, svg} from './dom.js';
import {duration} from './format.js';

const kHeight = 150;
const kWidth = 420;
const kLeft = 58;
const kBottom = 18;
const kTop = 8;
const kColours = ['#3d7fd9', '#c46f17', '#2e9e63', '#a35bd6', '#d64550', '#8a8f00', '#1d9aa8', '#c2579b'];

/// A round number not below `value`.
function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= value * 0.999);
}

export class LineChart {
  /// `format(value)` → text with its unit.
  constructor({title, about, format}) {
    this.format = format;
    this.title = title;
    this.plot = svg('svg', {viewBox: `0 0 ${kWidth} ${kHeight}`, role: 'img'});
    this.legend = element('ul', {class: 'legend'});
    this.at = element('p', {class: 'small soft'}, about);
    this.about = about;
    this.node = element('section', {class: 'panel line-chart'},
      element('h2', {}, title), this.at, this.plot, this.legend);
    this.plot.addEventListener('pointermove', (event) => this.point(event));
    this.plot.addEventListener('pointerleave', () => say(this.at, this.about));
  }

  /// `times`: seconds, ascending; `series`: [{name, values}] with NaN where nothing is known.
  show(times, series) {
    this.times = times;
    this.series = series;
    const known = series.flatMap(({values}) => values).filter(Number.isFinite);
    const most = roundedUp(Math.max(...known) > 0 ? Math.max(...known) : 1);
    const [from, to] = [times[0] ?? 0, times.at(-1) ?? 1];
    this.x = (time) => kLeft + (time - from) / Math.max(to - from, 1) * (kWidth - kLeft - 6);
    const y = (value) => kHeight - kBottom - value / most * (kHeight - kBottom - kTop);
    const ticks = [0, most / 2, most].map((value) => [
      svg('line', {class: 'grid', x1: kLeft, x2: kWidth - 6, y1: y(value), y2: y(value)}),
      svg('text', {class: 'tick', x: kLeft - 6, y: y(value) + 4, 'text-anchor': 'end'},
        known.length > 0 && this.format(value))]);
    const lines = series.map(({values}, index) => {
      let path = '';
      let pen = 'M';
      values.forEach((value, i) => {
        if (Number.isFinite(value)) path += `${pen}${this.x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = Number.isFinite(value) ? 'L' : 'M';
      });
      return path && svg('path', {class: 'curve', d: path, stroke: kColours[index % kColours.length]});
    });
    fill(this.plot, ticks, lines,
      svg('text', {class: 'tick', x: kLeft, y: kHeight - 4}, to > from ? `${duration(to - from)} ago` : ''),
      svg('text', {class: 'tick', x: kWidth - 6, y: kHeight - 4, 'text-anchor': 'end'}, 'now'));
    const newest = series.map(({name, values}) => [name, this.format(values.at(-1))]);
    const words = newest.map((pair) => pair.join(' ')).join(', ');
    this.plot.setAttribute('aria-label', `${this.title}: ${words || 'nothing yet'}`);
    fill(this.legend, known.length === 0 && element('li', {class: 'soft'}, 'Nothing yet.'),
      known.length > 0 && newest.map(([name, value], index) => {
        const swatch = element('span', {class: 'swatch'});
        swatch.style.background = kColours[index % kColours.length];
        return element('li', {}, swatch, `${name}: ${value}`);
      }));
  }

  point(event) {
    if (!this.times?.length) return;
    const box = this.plot.getBoundingClientRect();
    const wanted = (event.clientX - box.left) / box.width * kWidth;
    let nearest = 0;
    this.times.forEach((time, i) => {
      if (Math.abs(this.x(time) - wanted) < Math.abs(this.x(this.times[nearest]) - wanted)) nearest = i;
    });
    say(this.at, `${duration(this.times.at(-1) - this.times[nearest])} ago: ${this.series
      .map(({name, values}) => `${name} ${this.format(values[nearest])}`).join(', ')}`);
  }
}
