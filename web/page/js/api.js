// The server's HTTP API: calls, errors, and server-sent events.
import {store} from './store.js';
import {inPageWords} from './words.js';

const kAnswerWithin = 30000;   // milliseconds
const kSilence = 40000;        // streams have a heartbeat each 15 s
const kFirstRetry = 500;
const kLastRetry = 8000;

/// A refusal, or no answer at all (status 0). `param` names the request's field that is to blame, where one is.
export class ApiError extends Error {
  constructor(status, {message, param = null, code = null} = {}) {
    super(message ? inPageWords(message) : `the server answered with status ${status}`);
    this.status = status;
    this.param = param;
    this.code = code;
  }

  /// What was asked for is not there, or no more.
  get isGone() {
    return this.status === 404 || this.status === 410;
  }
}

/// Tells of 'connection' (detail: true = the server answers) and of 'key' (a key is needed).
export const apiEvents = new EventTarget();

function tell(name, detail) {
  apiEvents.dispatchEvent(new CustomEvent(name, {detail}));
}

async function request(path, options, signal) {
  const key = store.key();
  const headers = {...options.headers, ...(key && {Authorization: `Bearer ${key}`})};
  let answer;
  try {
    answer = await fetch(path, {...options, headers, signal, cache: 'no-store'});
  } catch (error) {
    if (options.signal?.aborted || error.name === 'AbortError') throw error;
    tell('connection', false);
    throw new ApiError(0, {message: error.name === 'TimeoutError'
      ? 'the server does not answer in time' : 'the server cannot be reached'});
  }
  tell('connection', true);
  if (answer.ok) return answer;
  if (answer.status === 401) tell('key');
  const body = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, body.error);
}

async function call(path, options = {}) {
  return request(path, options, AbortSignal.timeout(kAnswerWithin));
}

export const api = {
  json: async (path) => (await call(path)).json(),
  text: async (path) => (await call(path)).text(),
  blob: async (path) => (await call(path)).blob(),
  post: async (path, body = {}) => (await call(path, {
    method: 'POST',
    headers: {'Content-Type': body instanceof Blob ? body.type || 'application/octet-stream' : 'application/json'},
    body: body instanceof Blob ? body : JSON.stringify(body),
  })).json(),
};

/// Ends a job, and remembers that it was this browser's wish.
export async function cancelJob(id) {
  store.addCancelled(id);  // before it is done: the job's end may be told first
  try {
    await api.post(`${jobPath(id)}/cancel`);
  } catch (error) {
    store.removeCancelled(id);
    throw error;
  }
}

export const jobPath = (id) => `/api/v1/jobs/${encodeURIComponent(id)}`;

/// Follows a stream of server-sent events and connects again when it breaks, for ever, until the returned function is
/// called or `on` returns true. `on(event, data)` gets the JSON of each; `onError(error)` what a server refuses, after
/// which a refusal of the request itself (4xx) ends it. While the tab is hidden the stream is closed: a browser has
/// only six connections to a server, for all of its tabs.
export function listen(path, on, onError = () => {}) {
  let stopped = false;
  let current = null;
  let wake = () => {};

  async function once() {
    current = new AbortController();
    const {signal} = current;
    let watchdog;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => current.abort(), kSilence);
    };
    heard();
    try {
      const answer = await request(path, {headers: {Accept: 'text/event-stream'}}, signal);
      for await (const {event, data} of events(answer.body, heard))
        if (on(event, data)) return true;
      return false;
    } finally {
      clearTimeout(watchdog);
      current.abort();
    }
  }

  async function follow() {
    let pause = kFirstRetry;
    while (!stopped) {
      if (document.hidden) {
        await new Promise((resolve) => { wake = resolve; });
        continue;
      }
      const began = Date.now();
      try {
        if (await once()) return;
      } catch (error) {
        if (stopped) return;
        if (error instanceof ApiError) {
          onError(error);
          if (error.status >= 400 && error.status < 500 && error.status !== 429) return;
        } else if (!document.hidden) {
          tell('connection', false);
        }
      }
      if (Date.now() - began > kLastRetry) pause = kFirstRetry;
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, pause);
      });
      pause = Math.min(2 * pause, kLastRetry);
    }
  }

  const onVisibility = () => (document.hidden ? current?.abort() : wake());
  document.addEventListener('visibilitychange', onVisibility);
  follow().finally(() => document.removeEventListener('visibilitychange', onVisibility));
  return () => {
    stopped = true;
    current?.abort();
    wake();
  };
}

/// The events of a body, as the HTML standard parses them; `heard` is called for each chunk, heartbeats included.
async function* events(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let event = 'message';
  let data = [];
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    heard();
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === '') {
        if (data.length > 0) yield {event, data: JSON.parse(data.join('\n'))};
        event = 'message';
        data = [];
      } else if (line.startsWith('event:')) {
        event = line.slice(6).trim();
      } else if (line.startsWith('data:')) {
        data.push(line.slice(5).replace(/^ /, ''));
      }
    }
  }
}

/// Calls `task` at once and then `seconds` after each end of it, but not while the tab is hidden. Returns how to stop.
export function every(seconds, task) {
  let timer;
  let stopped = false;
  const run = async () => {
    if (!document.hidden) {
      try {
        await task();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
      }
    }
    if (!stopped) timer = setTimeout(run, seconds * 1000);
  };
  run();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
