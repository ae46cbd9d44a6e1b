// A worker in a frame, where the site is opened from its folder: a browser starts none from there, and the search needs one.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this._heard(data)
      inside.importScripts = (...urls) =>
        urls.reduce((done, each) => done.then(() => this._load(each)), Promise.resolve())
      this._inside = inside
      this._ready = this._load(url)
    }
    _load(url) {
      return new Promise((loaded, failed) => {
        const script = this._inside.document.createElement("script")
        script.src = url
        script.onload = loaded
        script.onerror = failed
        this._inside.document.body.appendChild(script)
      })
    }
    _heard(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }
    postMessage(data) {
      this._ready.then(() => this._inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
  window.IFrameWorker = window.Worker = IFrameWorker
}
