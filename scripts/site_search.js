/* Lets the search of the site work on pages that are opened from a disk (file://), where browsers start no Worker.
 *
 * The script of the worker runs in a hidden frame of its own. Nothing is fetched from another host. */
"use strict";
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) => Promise.all(urls.map((one) => this.load(one)));
      this.loaded = this.load(url);
    }

    load(url) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = new URL(url, location.href).href;
      const loaded = new Promise((done, failed) => {
        script.onload = done;
        script.onerror = () => failed(new Error(`${url} could not be loaded`));
      });
      this.frame.contentDocument.body.append(script);
      return loaded;
    }

    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.loaded.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
