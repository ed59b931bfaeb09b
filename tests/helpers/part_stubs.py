"""Parts without behaviour, of which a test replaces what it is about."""

from typing import Any

from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.protocols import PromptSource, RolloutEngine


class SourceStub(PromptSource):
    stop_ids = (1,)

    def prompts(self, split: str) -> Any:
        raise NotImplementedError

    def decode(self, tokens: Any) -> str:
        return ""


class EngineStub(RolloutEngine):
    capabilities, version = Capabilities(slots=1), -1

    async def load(self, version: Any) -> Any:
        raise NotImplementedError

    async def use(self, loaded: Any) -> None:
        raise NotImplementedError

    async def generate(self, requests: Any, on_reply: Any) -> None:
        raise NotImplementedError

    def health(self) -> dict[str, float]:
        return {}
