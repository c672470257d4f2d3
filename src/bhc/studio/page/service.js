// The HTTP service this page is on. Paths are relative, so that a proxy may put both under a prefix.

const TOKEN = "bhc-token";

/** What the service refused: its message, its hint, and the status. */
export class Refusal extends Error {
  constructor(message, { hint = "", status = 0 } = {}) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

/** The service's answers, with a bearer token where one was given for this tab. */
export const service = {
  get token() {
    return sessionStorage.getItem(TOKEN);
  },
  set token(value) {
    sessionStorage.setItem(TOKEN, value);
  },

  model: async () => (await ask("v1/model")).json(),

  preview: async (request, signal) => (await post("v1/previews", request, signal)).json(),

  answers: async (request, signal) => (await post("v1/answers", request, signal)).json(),

  /** The file of a network with its name. */
  async network(request) {
    const response = await post("v1/networks", request);
    const named = /filename="?([^";]+)"?/.exec(response.headers.get("content-disposition") ?? "");
    return { name: named?.[1] ?? `network.${request.format}`, content: await response.blob() };
  },

  /** What the service makes of a `.npy` file of samples. */
  async domain(file) {
    const headers = { "content-type": "application/octet-stream" };
    return (await ask("v1/domains", { method: "POST", headers, body: file })).json();
  },

  example: async (place) => (await ask(`v1/examples/${place}`)).json(),

  async picture(label, number) {
    const response = await ask(`v1/pictures/${label}/${number}.png`);
    return createImageBitmap(await response.blob());
  },
};

function post(path, request, signal) {
  const headers = { "content-type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(request), signal });
}

async function ask(path, options = {}) {
  const token = service.token;
  const headers = token ? { ...options.headers, authorization: `Bearer ${token}` } : options.headers;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new Refusal("the service does not answer", { hint: "is bhc serve still running?" });
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  const told = await response.json().catch(() => ({}));
  const message = told.error ?? `the service answered ${status}`;
  return new Refusal(message, { hint: told.hint ?? "", status });
}

/**
 * Asks for the newest only. One question is under way at a time: the next begins when it is answered, or takes its
 * place after `grace` ms. What comes in between is not asked at all, and no answer is shown after a newer one. What
 * takes longer than `patience` ms is told to `busy`, so that quick answers show nothing.
 */
export function latest(work, { delay = 40, grace = 250, patience = 180, busy = () => {} } = {}) {
  let wanted = null;
  let running = null;
  let timer, slow;

  async function next() {
    clearTimeout(timer);
    timer = undefined;
    if (wanted === null) return;
    const left = running === null ? 0 : running.since + grace - performance.now();
    if (left > 0) {
      timer = setTimeout(next, left);
      return;
    }
    running?.abort.abort();
    const mine = { ...wanted, since: performance.now(), abort: new AbortController() };
    [running, wanted] = [mine, null];
    clearTimeout(slow);
    slow = setTimeout(() => busy(true), patience);
    try {
      const result = await work(...mine.given, mine.abort.signal);
      if (mine === running) mine.answer(result);
    } catch (fault) {
      if (mine === running) mine.refuse(fault);
    }
    if (mine !== running) return;
    running = null;
    clearTimeout(slow);
    busy(false);
    next();
  }

  return (...given) => new Promise((answer, refuse) => {
    wanted = { given, answer, refuse };
    timer ??= setTimeout(next, delay);
  });
}
