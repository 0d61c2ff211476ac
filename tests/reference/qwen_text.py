"""Qwen as a text encoder: a small vocabulary in two forms of files, ids of many strings, states; and the pieces that families with it share."""
import collections
import json
import random
import shutil

import torch
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM, Qwen3Model

from checkpoints import WORDS
from clip import byte_letters, learn, strings
from common import FIXTURES, Book, randomise

FOLDER = FIXTURES / "tiny-qwen-text"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>"]
PLAIN = ["<think>", "</think>"]
TEMPLATE = ("{%- for message in messages %}{%- if message.role == 'user' %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endif %}"
            "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}"
            "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}")


def make_tokenizer():
    """About 500 tokens; `<|endoftext|>` pads, as in the published folders."""
    r = random.Random(5)
    words = collections.Counter({w: r.randint(3, 30) for w in WORDS})
    words.update({" " + w: r.randint(3, 30) for w in WORDS})
    words.update({"user": 9, "assistant": 9, "\n": 9, "\n\n": 4, "  ": 5, "café": 6, "über": 4, "日本": 6, "語": 4, "кот": 5, "🐱": 6, "🐱🐱": 2, "...": 5, " !!": 3, "'s": 9, "'t": 8})
    letters = byte_letters()
    merges = learn(words, 230, "")
    vocabulary = {}
    for token in [*(letters[b] for b in range(256)), *("".join(m) for m in merges)]:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges, pad_token="<|endoftext|>", eos_token="<|im_end|>", unk_token=None,
                               extra_special_tokens=SPECIAL[1:])
    tokenizer.add_tokens(PLAIN)
    tokenizer.chat_template = TEMPLATE
    tokenizer.model_max_length = 4096
    return tokenizer, vocabulary, merges


def make_encoder(tokenizer, kind=Qwen3ForCausalLM, seed=51, layers=4):
    config = Qwen3Config(vocab_size=len(tokenizer), hidden_size=24, intermediate_size=40, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                         rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, tie_word_embeddings=True, max_position_embeddings=4096)
    return randomise(kind(config), seed, {"embed_tokens": 5.0, "q_proj": 1.5})


def more_strings():
    r = random.Random(12)
    pools = [list("\r\n\t \u00a0\u2028\x85\x1c\u3000"), ["'S", "'lL", "'\u017f", " 'd"], list("abcXYZ"), list("0123٣½²"), list("!?。、"), [" ", "  ", "\n\n", " \n"],
             ["<|im_start|>", "<|im_end|>", "<think>", "<|image_pad|>"], list("e\u0301\u0323가\u1100\u1161\u212b")]
    written = ["a  b   c    ", "   a", " \n \n a", "\r\n\r\nx", "1234567 12,345.6", "x=1;\n\n\n\ty", "I'M he'Ll", "a\u00a0\u00a0b", "\U0001f3f3\ufe0f\u200d\U0001f308!!!\n\n", "<|im_start|>user\nhi<|im_end|>"]
    return written + ["".join(r.choice(r.choice(r.sample(pools, 3))) for _ in range(r.randint(1, 30))) for _ in range(300)]


def make():
    shutil.rmtree(FOLDER, ignore_errors=True)
    tokenizer, vocabulary, merges = make_tokenizer()
    tokenizer.save_pretrained(FOLDER / "tokenizer")
    lists = FOLDER / "tokenizer_lists"
    lists.mkdir(parents=True)
    (lists / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (lists / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    token = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
    listed = {str(tokenizer.convert_tokens_to_ids(t)): {"content": t, **token, "special": t in SPECIAL} for t in [*SPECIAL, *PLAIN]}
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": dict(sorted(listed.items(), key=lambda i: int(i[0]))), "additional_special_tokens": SPECIAL[1:],
              "bos_token": None, "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 131072,
              "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    (lists / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    forms = {name: Qwen2Tokenizer.from_pretrained(FOLDER / name) for name in ("tokenizer", "tokenizer_lists")}

    book = Book("qwen_tokens", "Ids by Qwen2Tokenizer of tiny-qwen-text/tokenizer, not cut; those of tokenizer_lists where they differ. `cut`: padded and cut to 12.")
    for k, prompt in enumerate(dict.fromkeys([*strings(), *more_strings()])):
        ids = {name: form(prompt).input_ids for name, form in forms.items()}
        case = {"prompt": prompt, "tokenizer": ids["tokenizer"]}
        if ids["tokenizer_lists"] != ids["tokenizer"]:
            case["tokenizer_lists"] = ids["tokenizer_lists"]
        if k < 60:
            case["cut"] = forms["tokenizer"](prompt, padding="max_length", max_length=12, truncation=True).input_ids
        book.case(str(k), case, {})
    book.save()

    book = Book("qwen_encoder", "Encoder `encoder` of tiny-qwen-text on input_ids [1, L]: last (after the final norm) and penultimate (hidden_states[-2]), [1, L, D].")
    for name, kind in (("text_encoder", Qwen3ForCausalLM), ("text_encoder_plain", Qwen3Model)):
        make_encoder(tokenizer, kind).save_pretrained(FOLDER / name)
        model = kind.from_pretrained(FOLDER / name).eval()
        for k, prompt in enumerate(("a red circle above a blue square", "日本 🐱\n" * 40, "a")):
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            states = model(ids, output_hidden_states=True).hidden_states
            assert torch.isfinite(states[-1]).all()
            book.case(f"{name}/{k}", {"encoder": name, "prompt": prompt}, {"input_ids": ids, "last": states[-1], "penultimate": states[-2]})
    book.save()
