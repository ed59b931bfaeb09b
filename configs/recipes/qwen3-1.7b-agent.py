"""An agent with a calculator. The environment `http` of qwen3-1.7b-agent.yml sends it each episode.

python qwen3-1.7b-agent.py 8765
"""

import ast
import json
import operator
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}
CALCULATOR = {
    "name": "calculate",
    "description": "Returns the value of an expression of numbers, + - * / and brackets.",
    "parameters": PARAMETERS | {"required": ["expression"]},
}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


def calculate(arguments):
    """The tool. What the policy wrote may be anything, so every error is an answer, too."""
    try:
        expression = json.loads(arguments)["expression"]
        if len(expression) > 200:
            return "error: the expression has more than 200 characters"
        return str(value(ast.parse(expression, mode="eval").body))
    except (ArithmeticError, LookupError, RecursionError, SyntaxError, TypeError, ValueError) as e:
        return f"error: {e}"


def value(node):
    match node:
        case ast.Constant(int() | float() as number):
            return number
        case ast.BinOp(left, kind, right) if type(kind) in OPERATORS:
            return OPERATORS[type(kind)](value(left), value(right))
        case ast.UnaryOp(kind, operand) if type(kind) in OPERATORS:
            return OPERATORS[type(kind)](value(operand))
    raise ValueError("only numbers, + - * / and brackets are allowed")


def play(task):
    """Plays one episode, and returns what rewards read."""
    messages = [{"role": "user", "content": task["text"]}]
    tools = [{"type": "function", "function": CALCULATOR}]
    headers = {"Authorization": f"Bearer {task['api_key']}"}
    calls = 0
    with httpx.Client(base_url=task["base_url"], headers=headers, timeout=600) as policy:
        while True:
            body = {"model": task["model"], "messages": messages, "tools": tools}
            reply = policy.post("/chat/completions", json=body)
            refused = reply.status_code == 400
            if refused and reply.json()["error"]["code"] == "context_length_exceeded":
                return {"text": "", "ended": "cut", "metrics": {"calls": calls}}
            message = reply.raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return {"text": message["content"] or "", "metrics": {"calls": calls}}
            for call in message["tool_calls"]:
                result = calculate(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                calls += 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        outcome = json.dumps(play(task)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(outcome)))
        self.end_headers()
        self.wfile.write(outcome)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 1024  # the episodes of a step begin together
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
