"""Speaks vLLM's HTTP from `vllm serve …` on, to see what happens when it dies, is refused a port, or takes no adapter.

A reply repeats the prompt's last tokens. Its process has a child, as vLLM's has; ``--pids FILE`` gets both.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--host", "--port", "--served-model-name", "--tokenizer", "--dtype", "--generation-config", "--pids"):
    parser.add_argument(name)
parser.add_argument("--max-model-len")
parser.add_argument("--chat-template")
parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
parser.add_argument("--has-free", type=float, default=1.0)
parser.add_argument("--max-lora-rank", "--max-loras", type=int)
parser.add_argument("--lora-modules", nargs="+", default=[])
parser.add_argument("--enable-lora", action="store_true")
parser.add_argument("--refuse-lora", action="store_true")
parser.add_argument("--busy-once", type=Path)
parser.add_argument("--die-after", type=int, default=10**9)
parser.add_argument("words", nargs="*")
options = parser.parse_args()
names = [options.served_model_name, *(module.partition("=")[0] for module in options.lora_modules)]
if options.refuse_lora and options.enable_lora:
    error = "FoxForCausalLM does not support LoRA yet."
    more = (f"RuntimeError: Worker failed with error {error!r}", "RuntimeError: Engine core initialization failed.")
    sys.exit("\n".join((f"ValueError: {error}", *more)))
if options.gpu_memory_utilization > options.has_free:
    free = f"Free memory on device cuda:0 ({20 * options.has_free}/20.0 GiB) on startup is less than desired"
    sys.exit(f"(EngineCore pid=1) ERROR 11-27 [core.py:1] ValueError: {free} GPU memory utilization (0.92, 18.4 GiB).")
if options.busy_once and not options.busy_once.exists():
    options.busy_once.touch()
    sys.exit("OSError: [Errno 98] Address already in use")
# As vLLM 0.32 has it.
NO_LORA = (
    "Call to add_lora method failed: Worker failed with error 'LoRA is not enabled. Use --enable-lora to enable "
    "LoRA.', please check the stack trace above for the root cause"
)
bodies = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("load_lora_adapter"):
            self.reply({"error": {"message": NO_LORA, "type": "InternalServerError", "param": None, "code": 500}}, 500)
            return
        bodies.append(body)
        sys.stdout.write(json.dumps(body) + "\n")
        sys.stdout.flush()
        if len(bodies) > options.die_after:
            print("RuntimeError: the card is on fire", flush=True)
            server.shutdown()
            self.send_error(500)
            return
        tokens = [*body["prompt"][-4:], body["stop_token_ids"][0]]
        self.reply({"choices": [{"token_ids": tokens, "text": "", "finish_reason": "stop"}]})

    def reply(self, value: object, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


print(*sys.argv)
print("(APIServer pid=1) WARNING 11-27 [utils.py:255] This can cause errors like `OSError: Too many files`", flush=True)
child = subprocess.Popen(["sleep", "600"])
if options.pids:
    Path(options.pids).write_text(f"{os.getpid()} {child.pid}")
server = ThreadingHTTPServer((options.host, int(options.port)), Handler)
server.serve_forever()
# As vLLM does: its port is closed some time before it ends.
server.server_close()
time.sleep(2)
os._exit(1)
