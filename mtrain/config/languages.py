"""Languages by their ISO 639 codes: names, what is mistaken for a code, and how BLEU cuts each."""

import re
from difflib import get_close_matches
from typing import Literal

# ISO 639-1, and old codes that are still in use.
_NAMES = """
aa Afar, ab Abkhazian, ae Avestan, af Afrikaans, ak Akan, am Amharic, an Aragonese, ar Arabic,
as Assamese, av Avaric, ay Aymara, az Azerbaijani, ba Bashkir, be Belarusian, bg Bulgarian,
bh Bihari, bi Bislama, bm Bambara, bn Bengali, bo Tibetan, br Breton, bs Bosnian, ca Catalan,
ce Chechen, ch Chamorro, co Corsican, cr Cree, cs Czech, cu Church Slavonic, cv Chuvash, cy Welsh,
da Danish, de German, dv Divehi, dz Dzongkha, ee Ewe, el Greek, en English, eo Esperanto,
es Spanish, et Estonian, eu Basque, fa Persian, ff Fulah, fi Finnish, fj Fijian, fo Faroese,
fr French, fy Western Frisian, ga Irish, gd Scottish Gaelic, gl Galician, gn Guarani, gu Gujarati,
gv Manx, ha Hausa, he Hebrew, hi Hindi, ho Hiri Motu, hr Croatian, ht Haitian, hu Hungarian,
hy Armenian, hz Herero, ia Interlingua, id Indonesian, ie Interlingue, ig Igbo, ii Sichuan Yi,
ik Inupiaq, io Ido, is Icelandic, it Italian, iu Inuktitut, iw Hebrew, ja Japanese, jv Javanese,
ka Georgian, kg Kongo, ki Kikuyu, kj Kuanyama, kk Kazakh, kl Greenlandic, km Khmer, kn Kannada,
ko Korean, ks Kashmiri, ku Kurdish, kv Komi, kw Cornish, ky Kyrgyz, la Latin, lb Luxembourgish,
lg Ganda, li Limburgish, ln Lingala, lo Lao, lt Lithuanian, lu Luba-Katanga, lv Latvian,
mg Malagasy, mh Marshallese, mi Maori, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi,
ms Malay, mt Maltese, my Burmese, na Nauru, nb Norwegian, nd North Ndebele, ne Nepali, ng Ndonga,
nl Dutch, nn Norwegian Nynorsk, no Norwegian, nr South Ndebele, nv Navajo, ny Chichewa, oc Occitan,
oj Ojibwa, om Oromo, or Odia, os Ossetian, pa Punjabi, pi Pali, pl Polish, ps Pashto,
pt Portuguese, qu Quechua, rm Romansh, rn Rundi, ro Romanian, ru Russian, rw Kinyarwanda,
sa Sanskrit, sc Sardinian, sd Sindhi, se Northern Sami, sg Sango, sh Serbo-Croatian, si Sinhala,
sk Slovak, sl Slovenian, sm Samoan, sn Shona, so Somali, sq Albanian, sr Serbian, ss Swati,
st Southern Sotho, su Sundanese, sv Swedish, sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai,
ti Tigrinya, tk Turkmen, tl Tagalog, tn Tswana, to Tonga, tr Turkish, ts Tsonga, tt Tatar, tw Twi,
ty Tahitian, ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek, ve Venda, vi Vietnamese, vo Volapük,
wa Walloon, wo Wolof, xh Xhosa, yi Yiddish, yo Yoruba, za Zhuang, zh Chinese, zu Zulu
"""
NAMES = dict(each.split(maxsplit=1) for each in _NAMES.split(","))
# Codes of countries and other words that are taken for codes, each with the code that is meant. Of
# `kr`, Kanuri, which is `kau` as well, Korean is meant more often.
_MISTAKES = """
jp:ja jap:ja cn:zh chn:zh chi:zh zhs:zh zht:zh-TW zt:zh-TW hk:zh-HK kr:ko ua:uk gr:el cz:cs dk:da
sp:es esp:es mx:es ge:ka al:sq rs:sr ir:fa il:he vn:vi in:hi by:be at:de us:en gb:en ph:tl kz:kk
np:ne lk:si pk:ur pb:pt-BR jw:jv ji:yi deutsch:de mandarin:zh farsi:fa flemish:nl castilian:es
src: tgt: trg: ref: xxx: unk: txt:
"""
MISTAKES = dict(each.split(":") for each in _MISTAKES.split())

Tokenizer = Literal[
    "none",
    "zh",
    "13a",
    "intl",
    "char",
    "ja-mecab",
    "ko-mecab",
    "spm",
    "flores101",
    "flores200",
    "spBLEU-1K",
]
TOKENIZERS: dict[str, Tokenizer] = {"zh": "zh", "zho": "zh", "cmn": "zh"}
TOKENIZERS |= {"ja": "ja-mecab", "jpn": "ja-mecab", "ko": "ko-mecab", "kor": "ko-mecab"}


def language_code(language: str) -> str:
    """Return the language of a tag such as `zh_CN` or `pt-BR`."""
    return re.split("[-_]", language.lower())[0]


def tokenizer_for(language: str | None) -> Tokenizer:
    """Return sacreBLEU's tokenizer for a target language; 13a for most and for unknown ones."""
    return TOKENIZERS.get(language_code(language or ""), "13a")


def doubt(language: str) -> str | None:
    """Return why a text is no language code, such as `de`, `deu` or `de-AT`, and which is meant;
    None for a code. Of three letters, all are codes but for well-known mistakes.
    """
    code = language_code(language)
    has_form = re.fullmatch("([A-Za-z]{2}|[a-z]{3})([-_][A-Za-z0-9]{1,8})*", language)
    if has_form and code not in MISTAKES and (len(code) == 3 or code in NAMES):
        return None
    word = re.split(r"\W", code)[0]
    names = {name.lower(): known for known, name in NAMES.items()}
    names |= MISTAKES | {known: known for known in NAMES}
    near = get_close_matches(word, names, n=1, cutoff=0.75 if len(word) > 3 else 1.0)
    meant = names[near[0]] if near else ""
    advice = f"did you mean {meant}?" if meant else "write one such as en or zh-TW"
    return f"{language}: not known as a language code (ISO 639); {advice}"
