// Browsers start no web worker from file://. This one runs the search's worker in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      window.addEventListener("message", (event) => {
        if (event.source !== frame.contentWindow) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      const inner = frame.contentDocument;
      inner.open();
      inner.write(
        "<script>postMessage = parent.postMessage.bind(parent);" +
          "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, fail) => {" +
          "const script = document.createElement('script'); script.src = url; script.onload = done;" +
          "script.onerror = fail; document.head.appendChild(script); })), Promise.resolve());<\/script>" +
          '<script src="' + url + '"><\/script>'
      );
      inner.close();
      this.ready = new Promise((done) => { frame.onload = done; });
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
