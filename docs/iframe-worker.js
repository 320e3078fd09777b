// A site that is opened from a disk may not start workers, and the search is one. There, it runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inner = (this.inner = frame.contentWindow)
      const script = inner.document.createElement("script")
      this.ready = new Promise((resolve) => (script.onload = resolve))
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      script.src = url
      inner.document.body.appendChild(script)
    }
    async postMessage(data) {
      await this.ready
      this.inner.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
