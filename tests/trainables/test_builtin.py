"""The builtin corpora and encoder: reproducible, graded, parsed, covered by the tokenizer."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from random import Random

import numpy as np
import pytest

from trainables.data import builtin
from trainables.data.builtin.frames import Frame, contradict, draw, shorten, similarity
from trainables.data.builtin.lexicon import concepts, of_kinds
from trainables.encoders.builtin_encoder import encoder_folder

pytestmark = pytest.mark.costly

LANGUAGES = ("en", "zh")
SHA256 = {
    "en": "9a84f2344c117387161d22cf91fb3caa353d63e23478f8b1f305376ceac392f6",
    "zh": "3a956a66427ead98ac066d6f209e19108400e2bd84a3d87416f5a611acbb3c85",
}


def concept(word: str):
    return next(c for c in concepts() if word in c.english)


def blankless(text: str) -> str:
    return text.replace(" ", "")


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return request.param


def all_texts(language: str, n: int) -> list[str]:
    rows = (*builtin.pairs(language, "dev"), *builtin.pairs(language, "test"), *builtin.triplets(language, n))
    return [*builtin.sentences(language, n), *(cell for row in rows for cell in row if isinstance(cell, str))]


def test_same_bytes_on_every_machine(language: str) -> None:
    sample = [
        builtin.sentences(language, 200),
        builtin.sentences(language, 20, seed=1),
        builtin.triplets(language, 50),
        builtin.pairs(language, "dev", 50),
        builtin.pairs(language, "test", 50),
    ]
    digest = hashlib.sha256(json.dumps(sample, ensure_ascii=False).encode()).hexdigest()
    assert digest == SHA256[language], "the corpora changed: published smoke figures and caches change with them"


def test_sentences_are_distinct_prefixes_and_follow_the_seed(language: str) -> None:
    many = builtin.sentences(language, 2000)
    assert len(set(many)) == 2000
    assert builtin.sentences(language, 300) == many[:300]
    assert len(set(many) & set(builtin.sentences(language, 2000, seed=1))) < 200


def test_splits_share_no_sentence(language: str) -> None:
    dev, test = ({s for a, b, _ in builtin.pairs(language, split) for s in (a, b)} for split in ("dev", "test"))
    train = {*builtin.sentences(language, 5000), *itertools.chain(*builtin.triplets(language, 2000))}
    assert not dev & test
    assert not train & (dev | test)


def test_scores_are_graded(language: str) -> None:
    for split in ("dev", "test"):
        scores = np.array([score for *_, score in builtin.pairs(language, split)])
        assert len(scores) == builtin.PAIRS
        assert scores.min() >= 0
        assert scores.max() == 5
        assert len(set(scores)) >= 30
        assert np.histogram(scores, bins=5, range=(0, 5))[0].min() >= 0.06 * len(scores)


def test_shared_words_alone_do_not_make_a_score(language: str) -> None:
    """Word overlap must leave room for learning, and paraphrases must really differ in words."""
    from scipy.stats import spearmanr

    pairs = builtin.pairs(language, "dev")
    bags = [[{t.text.lower() for t in builtin.parse(s, language)} for s in row[:2]] for row in pairs]
    overlap = [len(a & b) / len(a | b) for a, b in bags]
    assert 0.1 < spearmanr(overlap, [score for *_, score in pairs]).statistic < 0.6
    assert np.mean([a != b for a, b, score in pairs if score == 5]) > 0.9


def test_similarity_of_known_frames() -> None:
    cook = Frame(concept("doctor"), concept("buy/bought/bought"), concept("cake"))
    nurse = Frame(concept("nurse"), cook.action, cook.object)
    other = Frame(concept("boy"), concept("sleep/slept/slept"))
    denied = Frame(cook.agent, cook.action, cook.object, negated=True)
    assert similarity(cook, cook) == 1
    assert similarity(cook, nurse) == similarity(nurse, cook) == pytest.approx((3 + 2.5 + 0.4 * 2.5) / 8)
    assert similarity(cook, denied) == 0.5
    assert similarity(cook, other) == 0


def test_exchanged_roles_are_not_the_same_meaning() -> None:
    one = Frame(concept("doctor"), concept("help"), concept("boy"))
    assert similarity(one, Frame(one.object, one.action, one.agent)) == pytest.approx(
        3 / 8
    )  # only the action is shared


def test_entailed_frames_are_closer_than_contradicted_ones() -> None:
    rng = Random(3)
    closer = 0
    for _ in range(500):
        frame = draw(rng)
        entailed, contradicted = shorten(frame, rng), contradict(frame, rng)
        assert entailed.negated == frame.negated
        assert contradicted != frame
        closer += similarity(frame, entailed) > similarity(frame, contradicted)
    assert closer > 475


def test_triplets_have_three_texts_and_the_contradiction_differs(language: str) -> None:
    rows = builtin.triplets(language, 500)
    assert all(len(row) == 3 and row[2] not in row[:2] for row in rows)


def test_every_sentence_parses_as_a_tree(language: str) -> None:
    for sentence in all_texts(language, 1500):
        tokens = builtin.parse(sentence, language)
        assert "".join(t.text for t in tokens) == blankless(sentence)
        assert [t.dep for t in tokens].count("ROOT") == 1
        for i, token in enumerate(tokens):
            assert (token.head == i) == (token.dep == "ROOT")
            seen = {i}
            while tokens[i].head != i:
                i = tokens[i].head
                assert i not in seen, f"a cycle in {sentence}"
                seen.add(i)


def test_lengths_vary(language: str) -> None:
    lengths = [len(builtin.parse(s, language)) for s in builtin.sentences(language, 2000)]
    assert min(lengths) <= 5
    assert 17 <= max(lengths) <= 30
    assert np.std(lengths) > 2


def test_labels_that_the_edit_rules_look_for(language: str) -> None:
    sentences = builtin.sentences(language, 2000)
    deps = Counter(t.dep for s in sentences for t in builtin.parse(s, language))
    wanted = {"nsubj", "nsubjpass", "auxpass", "neg", "amod", "advcl"}
    wanted |= {"aux", "relcl"} if language == "en" else {"aux:modal", "aux:asp", "acl", "mark"}
    assert all(deps[dep] >= 20 for dep in wanted), deps


def test_parse_of_an_english_passive() -> None:
    tokens = builtin.parse("At dawn, the cake wasn't eaten by a man who wears spectacles.", "en")
    heads = {t.text: (t.dep, tokens[t.head].text, t.tag) for t in tokens}
    assert heads["cake"] == ("nsubjpass", "eaten", "NN")
    assert heads["was"] == ("auxpass", "eaten", "VBD")
    assert heads["n't"] == ("neg", "eaten", "RB")
    assert heads["eaten"] == ("ROOT", "eaten", "VBN")
    assert heads["by"] == ("agent", "eaten", "IN")
    assert heads["man"] == ("pobj", "by", "NN")
    assert heads["wears"] == ("relcl", "man", "VBZ")
    assert heads["dawn"] == ("pobj", "At", "NN")
    assert next(t.lemma for t in tokens if t.text == "eaten") == "eat"


def test_parse_of_a_chinese_sentence() -> None:
    tokens = builtin.parse("昨天，年轻的医生在花园里没有帮助老师，因为下雨。", "zh")
    assert [(t.text, t.dep, tokens[t.head].text) for t in tokens] == [
        ("昨天", "nmod:tmod", "帮助"), ("，", "punct", "帮助"), ("年轻", "amod", "医生"), ("的", "mark", "年轻"),
        ("医生", "nsubj", "帮助"), ("在", "case", "花园"), ("花园", "nmod:prep", "帮助"), ("里", "case", "花园"),
        ("没有", "neg", "帮助"), ("帮助", "ROOT", "帮助"), ("老师", "dobj", "帮助"), ("，", "punct", "帮助"),
        ("因为", "mark", "下雨"), ("下雨", "advcl", "帮助"), ("。", "punct", "帮助"),
    ]  # fmt: skip


def test_foreign_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match="'Colourless'"):
        builtin.parse("Colourless ideas sleep.", "en")
    with pytest.raises(ValueError, match="got '思'"):
        builtin.parse("思想在睡觉。", "zh")
    with pytest.raises(ValueError, match=r"in 'The doctor the cake\.'"):
        builtin.parse("The doctor the cake.", "en")
    with pytest.raises(ValueError, match=r"en, zh.*'fr'"):
        builtin.sentences("fr", 3)
    with pytest.raises(ValueError, match="dev or test, got 'train'"):
        builtin.pairs("en", "train")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n >= 0, got -1"):
        builtin.triplets("en", -1)


def test_synonyms_are_closer_than_other_words(language: str) -> None:
    words, vectors = builtin.word_vectors(language)
    assert vectors.shape == (len(words), 300)
    assert vectors.dtype == np.float32
    assert len(set(words)) == len(words)
    unit = dict(zip(words, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True))
    nouns = [c.words(language) for c in of_kinds("person", "animal")]
    synonyms = [unit[a] @ unit[b] for a, b in nouns]
    others = [unit[a[0]] @ unit[b[0]] for a, b in itertools.combinations(nouns, 2)]
    assert min(synonyms) > np.quantile(others, 0.95)
    assert 0.4 < np.mean(synonyms) < 0.95
    assert np.array_equal(vectors, builtin.word_vectors(language)[1])
    assert builtin.word_vectors(language, dim=20)[1].shape == (len(words), 20)


def test_plain_word_averages_are_neither_useless_nor_perfect() -> None:
    from scipy.stats import spearmanr

    words, vectors = builtin.word_vectors("en")
    row = {word: i for i, word in enumerate(words)}

    def average(sentence: str) -> np.ndarray:
        cleaned = "".join(c if c.isalpha() else " " for c in sentence.lower().replace("'", ""))
        return vectors[[row[word] for word in cleaned.split()]].mean(axis=0)  # KeyError: a word without a vector

    cosines = []
    for a, b, _ in builtin.pairs("en", "dev"):
        u, v = average(a), average(b)
        cosines.append(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    assert 0.3 < spearmanr(cosines, [s for *_, s in builtin.pairs("en", "dev")]).statistic < 0.9


@pytest.fixture(scope="module")
def encoder(language: str, tmp_path_factory: pytest.TempPathFactory):
    transformers = pytest.importorskip("transformers")
    cache = tmp_path_factory.mktemp(f"cache-{language}")
    folder = encoder_folder(language, cache)
    assert encoder_folder(language, cache) == folder
    assert [p.name for p in cache.iterdir()] == [folder.name], "half-written folders stay behind"
    return (
        folder,
        transformers.AutoTokenizer.from_pretrained(folder),
        transformers.AutoModel.from_pretrained(folder),
    )


def test_tokenizer_covers_every_sentence(language: str, encoder) -> None:
    _, tokenizer, _ = encoder
    texts = all_texts(language, 1000)
    texts += (
        ["It isn't that he can't help but sing; 3 zebras!"] if language == "en" else ["毋庸置疑，今天天气很好！3个A"]
    )
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert all(tokenizer.unk_token_id not in row for row in ids)
    if language == "zh":
        assert [len(row) for row in ids] == [len(text) for text in texts]  # one token per character
    else:
        assert np.mean([len(row) for row in ids[:-1]]) < 14  # whole words, not letters


def test_encoder_loads_and_is_the_same_everywhere(language: str, encoder, tmp_path) -> None:
    import torch
    from transformers import AutoModel

    folder, tokenizer, model = encoder
    assert (folder / "model.safetensors").is_file()
    again = AutoModel.from_pretrained(encoder_folder(language, tmp_path / "new" / "cache"))
    for (name, ours), theirs in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    texts = builtin.sentences(language, 4)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.eval()(**batch).last_hidden_state
    assert hidden.shape[::2] == (4, 64)
    assert bool(torch.isfinite(hidden).all())
    assert bool((hidden[:, 0].std(dim=0) > 0.01).all()), "[CLS] does not depend on the sentence"


def test_writing_leaves_the_random_state_alone(language: str, tmp_path) -> None:
    import torch

    torch.manual_seed(5)
    before = torch.get_rng_state()
    encoder_folder(language, tmp_path)
    assert torch.equal(before, torch.get_rng_state())
