import pytest
from torch import nn

from speedtronic.config.sections import ModelConfig
from speedtronic.errors import ConfigError
from speedtronic.model import ReferenceTransformer, build_model, register_model, registry


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
    assert model.blocks[0].mlp.up.weight.shape == (88, 32), "two thirds of 128, a multiple of 4"
    assert model.blocks[0].attention.key.weight.shape == (16, 32)


def test_a_registered_builder_gets_the_keys_that_were_given() -> None:
    @register_model("toy")
    class Toy(nn.Module):
        def __init__(self, width: int, dropout: float = 0.5) -> None:
            super().__init__()
            self.width, self.rate = width, dropout

    model = build_model(ModelConfig.model_validate({"name": "toy", "width": 3, "dropout": 0.25}))
    assert isinstance(model, Toy)  # the decorator hands the class back
    assert (model.width, model.rate) == (3, 0.25)
    assert build_model(ModelConfig.model_validate({"name": "toy", "width": 3})).rate == 0.5


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"name": "nowhere.at.all:build"}, "does not import: ModuleNotFoundError"),
        ({"name": "torch.nn:NoSuchThing"}, "NoSuchThing"),
        ({"name": "math:pi"}, "a float, expected a function"),
        ({"name": "torch.nn:Linear"}, "it raised TypeError"),
        ({"name": "builtins:dict"}, "returned a dict, expected an nn.Module"),
        ({"name": "torch.nn:Linear", "in_features": 2, "out_features": 2, "bis": 1}, "'bis'"),
        ({"name": "toy", "hight": 2}, "model.name is 'toy'; it raised TypeError"),
    ],
)
def test_a_factory_that_cannot_be_used_is_named(section: dict[str, object], said: str) -> None:
    register_model("toy")(lambda width: nn.Identity())
    with pytest.raises(ConfigError) as caught:
        build_model(ModelConfig.model_validate(section))
    assert said in str(caught.value)
    assert str(caught.value).startswith("model.name is ")
    assert "\n" not in str(caught.value)


def test_a_factory_is_imported_and_called() -> None:
    section = {"name": "torch.nn:Linear", "in_features": 2, "out_features": 3}
    assert isinstance(build_model(ModelConfig.model_validate(section)), nn.Linear)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="'reference_transformer' is registered already"):
        register_model("reference_transformer")(lambda: nn.Identity())


def test_an_unknown_name_is_refused_with_the_nearest_and_all_names() -> None:
    register_model("toy")(lambda: nn.Identity())
    with pytest.raises(ConfigError) as caught:
        build_model(ModelConfig(name="referense"))
    assert str(caught.value) == (
        "model.name is 'referense'; did you mean 'reference_transformer'? "
        "known are reference_transformer, toy, or any package.module:factory"
    )


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(ConfigError, match=r"^model\.name is 'xyz'; known are reference_transf"):
        build_model(ModelConfig(name="xyz"))
