// Search without a server: browsers start no worker for a page that was opened from a file, so its script runs in a
// hidden frame instead. With a server, the browser's own workers are used.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      const base = new URL(url, location.href);
      const add = (source) =>
        new Promise((done) => {
          const script = inner.document.createElement("script");
          script.src = new URL(source, base).href;
          script.onload = done;
          inner.document.body.appendChild(script);
        });
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...sources) => sources.reduce((last, next) => last.then(() => add(next)), Promise.resolve());
      this.inner = inner;
      this.ready = add(base);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inner.frameElement.remove();
    }
  };
}
