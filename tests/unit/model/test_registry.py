import pytest
from torch import nn

from speedtronic.errors import ConfigError
from speedtronic.model import ReferenceTransformer, build_model, register_model, registry
from speedtronic.sections import ModelConfig


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))


def test_the_default_section_builds_the_reference_model() -> None:
    section = ModelConfig(n_layer=3, n_head=4, n_kv_head=2, d_model=32, max_seq_len=16)
    model = build_model(section)
    assert isinstance(model, ReferenceTransformer)
    assert len(model.blocks) == 3
    assert model.max_seq_len == 16
    assert model.embedding.weight.shape == (section.vocab_size, 32)
    assert model.blocks[0].mlp.up.weight.shape == (section.d_ff, 32)
    assert model.blocks[0].attention.key.weight.shape == (16, 32)


def test_a_registered_builder_gets_the_section_as_it_is() -> None:
    seen = []

    @register_model("toy")
    def build_toy(section: ModelConfig) -> nn.Module:
        seen.append(section)
        return nn.Identity()

    section = ModelConfig(name="toy")
    assert isinstance(build_model(section), nn.Identity)
    assert seen == [section]
    assert build_toy(section) is not None  # the decorator hands the builder back


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="'reference_transformer' is registered already"):
        register_model("reference_transformer")(lambda section: nn.Identity())


def test_an_unknown_name_is_refused_with_the_nearest_and_all_names() -> None:
    register_model("toy")(lambda section: nn.Identity())
    with pytest.raises(ConfigError) as caught:
        build_model(ModelConfig(name="referense"))
    assert str(caught.value) == (
        "model.name is 'referense'; did you mean 'reference_transformer'? "
        "known are reference_transformer, toy"
    )


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(ConfigError, match=r"^model\.name is 'xyz'; known are reference_transf"):
        build_model(ModelConfig(name="xyz"))
