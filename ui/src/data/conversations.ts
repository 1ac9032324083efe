// Conversations as the API answers them. Messages are what their senders sent; this is what the page looks for in them.
import type { Conversation as Stored, ConversationsAnswer, ListedConversation } from '../generated/api';

export type { FacetValue, Snippet, Strip } from '../generated/api';

export interface ToolCall {
  id?: string;
  type?: string;
  function?: { name?: string; arguments?: unknown };
  name?: string;
  arguments?: unknown;
  [key: string]: unknown;
}

export interface Message {
  role?: string;
  content?: unknown;
  reasoning_content?: unknown;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  name?: string;
  [key: string]: unknown;
}

/** A static file has no index: it lacks what comes from there. */
type Indexed = 'source' | 'tokens' | 'duration_s' | 'tools' | 'thumbnails';

/** What a list shows of a conversation. */
export type Row = Omit<ListedConversation, 'messages' | Indexed> & Partial<Pick<ListedConversation, Indexed>> & { messages?: Message[] };

/** One conversation, its messages as a list. */
export type Conversation = Omit<Stored, 'messages'> & { messages: Message[] };

export type Listed = Omit<ConversationsAnswer, 'conversations'> & { conversations: Row[] };

export interface Question {
  run?: string | null;
  search?: string;
  sort?: string;
  step?: string;
  group?: string;
  sample?: string;
  cursor?: string;
  limit?: number;
  facets?: string;
  messages?: boolean;
  snippets?: boolean;
}
