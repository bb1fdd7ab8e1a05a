/** Where an intent is. `done`, `refused`, `unknown`, `notyet`, `expired` and `changed` end a submission. */
export type State =
  | "ready"
  | "open" // sent before this page was loaded, with no outcome yet
  | "sending"
  | "waiting" // an attempt brought no outcome; another one follows
  | "offline"
  | "pending" // accepted (202); its status is asked for
  | "done"
  | "refused" // the server has refused it; a corrected one gets a new key
  | "unknown" // its outcome cannot be proven; its status is asked for, and nothing is sent again
  | "notyet" // no outcome within `seconds`; the same submission may be sent again, with the same key
  | "expired" // the key's lifetime is over: look by your business reference, then call `renew()`
  | "changed"; // another payload was sent under this key, and the person does not want both

/** A problem document (RFC 9457) of a server that speaks Semel's HTTP contract. */
export interface Problem {
  type?: string;
  title?: string;
  status?: number;
  detail?: string;
  code?: string;
  retryable?: boolean;
  keyAction?: "keep" | "new" | "query";
  operation?: string;
  resource?: string;
  [member: string]: unknown;
}

/** What the status resource says of an operation. */
export interface Operation {
  operationId: string;
  operation: string;
  state: string;
  running: boolean;
  resource?: { type: string | null; id: string };
  [member: string]: unknown;
}

export interface Report {
  state: State;
  name: string;
  /** The key that was or will be sent. */
  key: string;
  /** Whether the key survives a reload: false where the browser denies storage, or it is full. */
  persistent: boolean;
  /** Whether the answer is the stored one of an earlier attempt. */
  replayed: boolean;
  attempt?: number;
  status?: number;
  /** The answer; its body has arrived whole and may be read once. */
  response?: Response;
  problem?: Problem;
  code?: string | null;
  /** The status resource that is asked. */
  link?: string;
  operation?: Operation;
  /** Until the next attempt. */
  seconds?: number;
}

export interface IntentOptions {
  /** Where the key is kept: all tabs and later visits (default), this tab, or this page. */
  storage?: "local" | "session" | "memory";
  /** The key of a new intent, such as the value that the server wrote into the form. Default: a random UUID. */
  key?: string;
  /** How long one submission goes on retrying, in seconds; default 60. */
  seconds?: number;
  /** How long one attempt may take, in seconds; default 30. */
  attemptSeconds?: number;
  /** How long the server remembers a key, in seconds, where it does not say; default 86400. */
  lifetimeSeconds?: number;
  /** Asks whether a changed payload is to be sent although the first may have happened; default: `confirm`. */
  ask?: (question: string) => boolean | Promise<boolean>;
  /** Follow redirects; the function says whether the page at the end means that the command is done. */
  follow?: (url: URL) => boolean;
  /** Used in place of `fetch` for the command. */
  fetch?: typeof fetch;
  onState?: (report: Report) => void;
}

/** A body that can be sent twice, or a function of the key that makes it; it is called with "" to tell payloads apart. */
export type Repeatable = string | FormData | URLSearchParams | Blob | ArrayBuffer | Uint8Array | null | undefined;
export type Command = Omit<RequestInit, "body"> & { body?: Repeatable | ((key: string) => Repeatable) };

export class Intent {
  constructor(name: string, options?: IntentOptions);
  readonly name: string;
  /** Undefined before `ready`. */
  readonly key: string | undefined;
  /** When it was first sent, in milliseconds since 1970. */
  readonly sentAt: number | undefined;
  /** Whether it was sent, and what became of it is not known here. */
  readonly isOpen: boolean;
  readonly persistent: boolean;
  readonly report: Report;
  readonly ready: Promise<this>;
  /** Send the command (POST unless `init.method` says otherwise) until there is an outcome; see `Report.state`. */
  fetch(url: string, init?: Command): Promise<Report>;
  /** Whether this is what was sent first under the key. */
  isSame(url: string, init?: Command): boolean;
  /** A new key: only when the former intent is known to be over, or a second effect is wanted. */
  renew(key?: string): void;
}

/** The intent of this name with its key: the stored one while it is open, or else a new one. */
export function intent(name: string, options?: IntentOptions): Promise<Intent>;

export interface ProtectOptions extends IntentOptions {
  /** The intent's name, such as "checkout-42"; default: `data-semel`, the form's id, or the path. */
  name?: string;
  /** The hidden field with the key, for forms that work without scripts too; default "_key". */
  field?: string;
  headers?: HeadersInit;
  credentials?: RequestCredentials;
  /** Makes the body from the form's data; a plain object is sent as JSON. Default: as the browser would. */
  body?: (data: FormData) => Repeatable | Record<string, unknown>;
  /** Where the state is written for people; default: the form's `[data-semel-status]`. */
  output?: Element;
  texts?: Partial<Record<State, string>>;
  /** Keep what was typed in this tab (sessionStorage) until there is an outcome, and fill it in after a reload. */
  keep?: boolean;
  /** How old what was under way at a reload may be to go on by itself, in seconds; default 300. */
  resumeSeconds?: number;
}

export interface Protected {
  readonly intent: Intent;
  submit(submitter?: HTMLElement | null): Promise<Report>;
  stop(): void;
}

/** Let a form's submission be one intent. The form gets a bubbling `semel` event with each `Report` as its detail. */
export function protect(form: HTMLFormElement, options?: ProtectOptions): Protected;

/** A random UUID, also without a secure context. */
export function newKey(): string;
