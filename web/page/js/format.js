// Numbers as people read them.

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 0.0995) return `${significant(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = seconds / 3600;
  return hours < 48 ? `${hours.toFixed(1)} h` : `${Math.round(hours / 24)} days`;
}

export function bytes(count) {
  if (!Number.isFinite(count)) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (count >= 999.5 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(count) : significant(count)} ${units[unit]}`;
}

/// Up to three digits: 0.0123, 1.23, 12.3, 123, 12345.
export function significant(value) {
  if (!Number.isFinite(value)) return '–';
  if (Math.abs(value) >= 100) return String(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

export function percent(part) {
  return `${Math.round(part * 100)} %`;
}

export function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/// `seconds` since 1970, or an ISO date, as this browser's user writes a time; with the day where it is not today.
export function moment(time) {
  const date = new Date(typeof time === 'number' ? time * 1000 : time);
  if (Number.isNaN(date.getTime())) return '';
  const clock = date.toLocaleTimeString([], {hour: '2-digit', minute: '2-digit'});
  return date.toDateString() === new Date().toDateString() ? clock : `${date.toLocaleDateString()} ${clock}`;
}

export function shortened(text, length) {
  const letters = Array.from(text.replace(/\s+/g, ' ').trim());
  return letters.length <= length ? letters.join('') : `${letters.slice(0, length - 1).join('')}…`;
}
