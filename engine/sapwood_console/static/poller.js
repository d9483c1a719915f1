// Polls for the view that is open: one question at a time, none while nobody looks.

const LATE_MILLISECONDS = 10_000; // a gateway tells earlier that an engine hangs

/** Calls `ask` again `pauseSeconds()` after each answer, while started and the page is visible. */
export class Poller {
  #ask;
  #failed;
  #pause;
  #timer = 0;
  #controller = null;
  #started = false;

  constructor(ask, { pauseSeconds, failed }) {
    this.#ask = ask;
    this.#failed = failed;
    this.#pause = pauseSeconds;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#halt() : this.#wake()));
  }

  start() {
    this.#started = true;
    this.#wake();
  }

  stop() {
    this.#started = false;
    this.#halt();
  }

  /** Ask now, also where a refusal had stopped it: something that the answer depends on has changed. */
  again() {
    this.#halt();
    this.start();
  }

  #halt() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
    this.#controller = null;
  }

  #wake() {
    if (this.#started && !document.hidden && this.#controller === null) this.#round();
  }

  async #round() {
    const controller = (this.#controller = new AbortController());
    let isLate = false;
    const late = setTimeout(() => {
      isLate = true;
      controller.abort(new Error("The server does not answer."));
    }, LATE_MILLISECONDS);
    try {
      await this.#ask(controller.signal);
    } catch (error) {
      if (isLate || !controller.signal.aborted) this.#failed(error);
    } finally {
      clearTimeout(late);
    }
    if (controller !== this.#controller) return; // halted
    this.#timer = setTimeout(() => {
      this.#controller = null;
      this.#wake();
    }, 1000 * this.#pause());
  }
}
