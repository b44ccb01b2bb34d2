"""A LangGraph agent whose thread is stored by holdfast. Kill it while the tool runs, and run it again.

    python langgraph_agent.py sqlite:///agent.db "How deep is it here?"

The model is scripted, so that no key is needed: it calls the tool once, then says what the tool returned.
"""

import sys
import time

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from holdfast.adapters.langgraph import HoldfastSaver


def model(state: MessagesState) -> dict:
    last = state["messages"][-1]
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"The sounding says {last.content}.")]}
    call = {"name": "sound", "args": {}, "id": f"call-{len(state['messages'])}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def tools(state: MessagesState) -> dict:
    print("sounding …", flush=True)
    time.sleep(2)
    (call,) = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage("nine fathoms", tool_call_id=call["id"])]}


builder = StateGraph(MessagesState)
builder.add_node("model", model)
builder.add_node("tools", tools)
builder.add_edge(START, "model")
builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
builder.add_edge("tools", "model")

url, text = sys.argv[1:3]
graph = builder.compile(checkpointer=HoldfastSaver(url))
thread = {"configurable": {"thread_id": "voyage"}}
unfinished = bool(graph.get_state(thread).next)
# An interrupted run continues from its last checkpoint: the question is stored already.
done = graph.invoke(None if unfinished else {"messages": [HumanMessage(text)]}, thread, durability="sync")
print(done["messages"][-1].content)
