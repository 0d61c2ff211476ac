// Reads /metrics (Prometheus' text format) and answers what charts ask of two readings.

/// Map: name → [{labels, value}].
export function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split('\n')) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const [, name, inside, value] = found;
    const labels = {};
    for (const [, key, escaped] of (inside ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[key] = escaped.replace(/\\(.)/g, (_, letter) => (letter === 'n' ? '\n' : letter));
    if (!families.has(name)) families.set(name, []);
    families.get(name).push({labels, value: value === '+Inf' ? Infinity : Number(value)});
  }
  return families;
}

export function matching(families, name, wanted = {}) {
  return (families.get(name) ?? []).filter(({labels}) =>
    Object.entries(wanted).every(([key, value]) => labels[key] === value));
}

export function total(families, name, wanted) {
  const found = matching(families, name, wanted);
  return found.length > 0 ? found.reduce((sum, {value}) => sum + value, 0) : NaN;
}

/// How much a counter grew, and never less than 0: a server that was started again counts from 0.
export function growth(now, before, name, wanted) {
  const [new_, old] = [total(now, name, wanted), total(before, name, wanted)];
  return new_ >= old || Number.isNaN(old) ? new_ - (Number.isNaN(old) ? 0 : old) : new_;
}

/// The quantile of what a histogram counted between two readings, interpolated as Prometheus does it; NaN = nothing.
export function quantile(now, before, name, part, wanted = {}) {
  const bounds = [...new Set(matching(now, `${name}_bucket`, wanted).map(({labels}) => labels.le))]
    .map((le) => ({
      bound: le === '+Inf' ? Infinity : Number(le),
      count: growth(now, before, `${name}_bucket`, {...wanted, le}),
    }))
    .sort((a, b) => a.bound - b.bound);
  const all = bounds.at(-1)?.count ?? 0;
  if (!(all > 0)) return NaN;
  let lower = {bound: 0, count: 0};
  for (const upper of bounds) {
    if (upper.count >= part * all) {
      if (upper.bound === Infinity) return lower.bound;
      const inside = (part * all - lower.count) / Math.max(upper.count - lower.count, 1e-12);
      return lower.bound + (upper.bound - lower.bound) * inside;
    }
    lower = upper;
  }
  return NaN;
}
