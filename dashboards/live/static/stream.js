// The connection to the gateway: it tells when it is lost, and comes back by itself.

const SILENT_MILLISECONDS = 15000; // the gateway says something every 5 s, or more often
const LEAST_PAUSE = 500;
const MOST_PAUSE = 8000;

// Where the listener asks for a token, a session may have ended.
async function checkSession() {
  try {
    const answer = await fetch("/api/", { cache: "no-store" });
    if (answer.status === 401) location.assign("/login");
  } catch {
    // away, which the next try will see
  }
}

export function follow(url, handlers, tell) {
  let source = null;
  let pause = LEAST_PAUSE;
  let watchdog = 0;
  let again = 0;
  let retryAt = 0;

  function heard() {
    clearTimeout(watchdog);
    watchdog = setTimeout(lost, SILENT_MILLISECONDS);
  }

  function lost() {
    clearTimeout(watchdog);
    clearTimeout(again);
    source?.close();
    source = null;
    retryAt = Date.now() + pause;
    tell("lost", retryAt);
    checkSession();
    again = setTimeout(open, pause);
    pause = Math.min(MOST_PAUSE, pause * 2);
  }

  function open() {
    clearTimeout(again);
    source?.close();
    source = new EventSource(url);
    heard();
    source.addEventListener("error", lost);
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        heard();
        pause = LEAST_PAUSE;
        tell("live", 0);
        handler(JSON.parse(event.data));
      });
    }
  }

  // A laptop that wakes up, or a tab that is looked at again, need not wait for the next try.
  addEventListener("online", () => source === null && open());
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && source === null && open());
  open();
}
