"""Records what a real vLLM server answers, for ``recorded_vllm``.

``python tests/helpers/record_vllm.py SOCKET OUT.json``: SOCKET is that of a server which a worker
with the plug-in rlax_vllm has started.
"""

import json
import sys

import httpx

GENERATE = "/inference/v1/generate"


def main() -> None:
    socket, out = sys.argv[1:]
    http = httpx.Client(transport=httpx.HTTPTransport(uds=socket), base_url="http://vllm")

    def call(method: str, *arguments: object):
        return http.post("/collective_rpc", json={"method": method, "args": arguments}).json()

    def body(stream: bool, **sampling: object):
        params = {"n": 1, "logprobs": 0, "detokenize": False, "ignore_eos": True, "top_k": 0}
        return {
            "token_ids": [3, 17, 5, 60],
            "sampling_params": params | {"temperature": 1.0, **sampling},
            "cache_salt": "recorded",
            "stream": stream,
        }

    def streamed(**sampling: object) -> list:
        asked = body(True, stream_interval=8, seed=7, **sampling)
        lines = http.post(GENERATE, json=asked).text.split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    described = call("rlax_describe")
    described["results"][0].pop("model", None)  # a path
    length = streamed(max_tokens=20)
    stop = length[0]["choices"][0]["token_ids"][0]
    recorded = {
        "vllm": described["results"][0]["vllm"],
        "describe": described,
        "length": length[:1] + length[-1:],
        "stop": streamed(max_tokens=20, stop_token_ids=[stop]),
        "abort": http.post("/abort_requests", json={}).json(),
        "score": http.post(GENERATE, json=body(False, max_tokens=1, prompt_logprobs=0)).json(),
        "label": http.post("/update_weight_version", json={"new_version": "1-a"}).json(),
        "reset": http.post("/reset_prefix_cache", json={}).json(),
        "refused": http.post(GENERATE, json=body(False, max_tokens=0)).json(),
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(recorded, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
