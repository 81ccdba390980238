"""Who speaks in Chinese prose: by the clause that introduces a quotation, by the one after it, or by turns.

The names are learned from the text itself: what is often found before verbs of speech is a name. The subject
of the clause that introduces a quotation is then looked for backwards, clause by clause, at the clauses' beginnings,
because Chinese leaves a subject out as long as it stays the same. All of this is our own choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from rolellm.construct.scripts.quotes import Attribution, Paragraph, Quotation


def _any_of(words: str) -> str:
    return "(?:" + "|".join(sorted(words.split(), key=lambda word: -len(word))) + ")"


# What comes before the subject of a clause and says nothing about it.
_LEAD: Final = re.compile(
    _any_of(
        "却说 且说 话说 话表 再说 单说 只见 但见 忽见 又见 正见 早见 便见 只听得 忽听得 又听得 猛听得 只听见 忽听 "
        "只听 又听 闻得 听得 听见 看见 原来 不想 不料 不期 谁知 忽然 忽的 忽地 突然 猛然 于是 接着 随后 然后 后来 "
        "这时候 那时候 这时 此时 那时 当时 当下 须臾 少时 霎时 不一时 不多时 只是 但是 可是 不过 然而 而且 因此 "
        "所以 只 但 而 却 又 便 即 就 遂 忽 被 且 才 正 那边 这边 旁边 旁 慌得 唬得 吓得 惊得 急得 喜得 一日 次日 "
        "早有 旁有 内有 当有 幸有 另有 还有 又有 有 惟 真个 你看 不言 终于 果然 最后 今天 昨天 有一天 连 还是 还 由于 "
        "因为 当 等 班中 班部中"
    )
)
_POINTER: Final = re.compile("(?:那个|这个|那位|这位|那名|这名|那|这|好个|好|一[个名位只条起员]|个)")
# Verbs of speech; those of two characters that end in one of one are found by it.
_VERB: Final = _any_of(
    "道 曰 云 说 问 答 讲 喊 叫 骂 吼 嚷 喝 叹 唤 呼 念 吟 唱 笑 哭 劝 回 报 奏 禀 应 嘱 求 催 斥 谓 言 吩咐 分付 "
    "叮嘱 命令 宣布 解释 补充 感慨 嘀咕 嘟囔 咕哝 喃喃 自语 低语 耳语 抱怨 抗议 提醒 安慰 打断 重复 附和 开口 接口 "
    "接话 插嘴 插话 打趣 调侃 呵责 责备 咆哮 招呼 警告 威胁 建议 提议 承认 强调 保证 发誓 打听 称赞 介绍 推测 告诉 继续"
)
_AFTER: Final = re.compile(
    rf"(?P<head>[^，。！？：；、\s“”\"「」『』]{{0,18}}?){_VERB}(?:道|说|着|了|起来|出声|出来|一声|一句|几声)*"
    r"(?=[，。！？；…—]|$)"
)
_BEFORE: Final = re.compile(
    rf"(?:{_VERB}|日|教|令|命|告|启|旨|思|想|寻思|忖)(?:着|了|道|说|曰|云|声|一声|几声|个|几个|一句)*$"
)
_CITED: Final = re.compile(
    r"(?:(?:[歌诗词赋赞偈表颂谚古经易历谣》]|[谚俗古]语|[俗老古]话|常言|古人)\s*有?(?:云|曰|道|说|言)"
    r"|[写书镌刻题印绣标][着有道了下上]?[^，。！？]{0,10}|(?:字|旨意|榜文|批文|为证|正是|正所谓))$"
)
_HEARD: Final = re.compile("[听闻见据没不想要话如虽再难来小传学假按照胡乱瞎别莫休能会敢可该好所并未无]$")
# A semicolon after a verb of speech is a misprint.
_COLON: Final = re.compile(r"[：:]\s*$|(?<=[道曰云日回说问])[；;]\s*$")
_ENDED: Final = tuple("。！？…—～，；!?.,~．﹗-")
_GROUP: Final = re.compile(
    r"(?:(?:那|这|许多|所有的?|满[山城屋堂]的?)?[众群诸]|那些|这些|[一那这][群班伙队]|几[个位名]|[两二三四五六七八九十百千]+[个位名人]|大[众家])"
    r"[\u4e00-\u9fff]{0,4}"
)
# After an appearance comes the one who appears: ``跳出一名石猴``, ``忽见一个巡海的夜叉``.
_APPEARS: Final = re.compile(
    r"(?:[闪转][出过上来]了?|[跳闪走转撞钻冲跑飞站来进出立坐奔涌闯迎见有遇](?:出来|进来|过来|[出上来了过着起下到])*"
    r"[一两二三四五六七八九十几数]*[个名位员群班队伙](?:[\u4e00-\u9fff]{0,12}的)?)(?P<noun>[\u4e00-\u9fff、]{2,10})$"
)
_ANYBODY: Final = re.compile(r".{0,4}(?:有人|有个人|一人|某人)(?=[\u4e00-\u9fff]{0,6}$)")
# Somebody comes in who is not known yet; the one before has nothing more to say.
_COMES_IN: Final = re.compile("[早旁当幸内另忽又]有")
_PRONOUN: Final = re.compile("(?:他们|她们|它们|咱们|咱俩|他俩|我们|俺们|他|她|它|我|俺)")
_CALLED: Final = re.compile(r"([\u4e00-\u9fff]{2,4})[，！,!]")
_PLURAL: Final = re.compile("[都齐俱皆]|同声|纷纷|[一个各]个")
_SEVERAL: Final = re.compile("^[众群诸各两二三四五六七八九十百千几]|[们、]|大[众家]")
_ASKS_AGAIN: Final = re.compile("[又再复][追动]?问")
# A name with one of these behind it is another one: ``悟空道人`` is not 悟空.
_TITLE: Final = re.compile(
    _any_of(
        "道人 道长 真人 真君 和尚 长老 大师 禅师 法师 师父 师傅 师兄 师弟 先生 夫人 太太 小姐 公子 姑娘 大人 将军 "
        "元帅 菩萨 天王 龙王 魔王 国王 大王 太子 公主 妈妈 爸爸 母亲 父亲 爷爷 奶奶 老师 医生 队长"
    )
)
# Names have none of these characters, and begin with none of the next.
_NEVER: Final = frozenset(
    "的了着把将被对向从到是有不没你我他她它吗呢吧啊什么怎谁一两几每些就都也却便又还只已很最更且或若所，。！？"
    "：；、（）…—·《》〈〉0123456789 "
)
_NEVER_FIRST: Final = frozenset(
    "听看见说想走拿问答叫喊笑哭怒喝骂忽正再随因以为于在与和跟给让使令教请去来回过出进上下起坐站跪拜伸抬放抓推"
    "打立接转低睁闭望瞧盯指点摇挥叹沉自心口手眼头言话语此其思暗厉启传开应满咬咨"
)
# What follows a name in a clause of which it is the subject.
_FOLLOWS: Final = frozenset(
    "是有在也都又就便才却即忙急连正已将把被对向朝从与跟和给让叫令教着了过走来去到上下进出回看见听闻说道问答喊"
    "笑哭怒喝骂想心忽突慢轻低一点摇转站坐跪拜伸抬拿放抓拉推打起立躬叩惊吃喜欢气叹皱睁闭望瞧盯指接不没只还再终"
    "几先则亦乃遂因由往猛冷微苦大高厉应仰合领依顿登飞跳奔跑冲俱齐皆各闻传发启拦奏奔端，"
)
_MARKS_OBJECT: Final = "对向朝冲与和跟同问叫骂怨唤谓教令命把将被望劝扯揪定着住见给"
_CLAUSE: Final = re.compile(r"[^，。！？；：:,!?;\n…—“”\"「」『』（）()]+")
_SENTENCE_END: Final = '。！？!?…\n“”"」』'
# How often something must begin sentences to be taken for somebody: our choice.
_OFTEN: Final = 4

_PAIRS: Final = (
    "與与個个為为麼么樂乐書书爭争雲云僕仆從从們们眾众夥伙會会傳传優优軍军沖冲衝冲幾几齣出別别則则動动單单歷历變变號号嘆叹歎叹後后"
    "嚇吓啟启員员應应響响喚唤囑嘱聲声處处復复複复頭头奪夺婦妇孫孙寧宁對对尋寻將将師师帥帅帶带並并開开異异張张強强彈弹歸归當当"
    "懶懒護护報报擔担擁拥揮挥據据搖摇斷断無无時时顯显來来標标歡欢氣气沒没滿满爺爷獨独皺皱盤盘禮礼稟禀稱称緊紧約约終终經经結结給给"
    "繼继續续罷罢聽听聞闻虛虚補补裏里裡里見见覺觉計计認认討讨訓训講讲許许論论詩诗話话該该語语說说説说請请諸诸誰谁調调諺谚謂谓謠谣責责"
    "賊贼賦赋贊赞讚赞趕赶躍跃轉转軟软輕轻邊边過过邁迈還还這这進进連连釋释鑽钻長长門门閃闪閉闭問问闖闯間间隊队隨随難难須须頓顿領领題题"
    "飛飞饒饶馬马駡骂罵骂點点齊齐龍龙於于雖虽現现"
)
_TO_SIMPLIFIED: Final = str.maketrans(dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True)))


def _clauses(text: str) -> list[tuple[str, bool]]:
    """The clauses of a passage, each with whether a sentence begins with it, but for a word such as ``这时``."""
    found: list[tuple[str, bool]] = []
    for match in _CLAUSE.finditer(text):
        if clause := match[0].strip(" 　-")[:60]:
            is_initial = match.start() == 0 or text[match.start() - 1] in _SENTENCE_END
            found.append((clause, is_initial or (found != [] and found[-1][1] and not _core(found[-1][0])[0])))
    return found


def _core(clause: str) -> tuple[str, bool]:
    """A clause from its subject on, without words such as ``那``; and whether it is passive (``被``)."""
    is_passive = False
    while match := _LEAD.match(clause):
        is_passive = is_passive or match[0] == "被"
        clause = clause[match.end() :]
    pointer = _POINTER.match(clause)
    return clause[pointer.end() :] if pointer else clause, is_passive


def _could_be_name(text: str) -> bool:
    if "·" in text:
        return 3 <= len(text) <= 16
    return 1 <= len(text) <= 7 and not _NEVER & {*text.removesuffix("将")} and text[0] not in _NEVER_FIRST


def _cut(core: str) -> str:
    """What a clause begins with up to a character that often follows a name."""
    short, longer = (
        core[:first] + "".join(takewhile(lambda character: character not in _FOLLOWS, core[first:])) for first in (1, 2)
    )
    name = longer if len(short) == 1 and len(longer) == 3 else short
    return core if core == name + "将" else name


def _beginning(core: str) -> str:
    """The same, where it looks like a name; else nothing."""
    name = _cut(core)
    is_name = all(map(_could_be_name, re.split("[、的]", name))) and (name[0] not in _FOLLOWS or name[0] == "大")
    return name if is_name else ""


class Chinese(Attribution):
    """The rules for Chinese."""

    def __init__(
        self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], given: Sequence[str]
    ) -> None:
        self.written = text
        simple = [name.translate(_TO_SIMPLIFIED) for name in given]
        super().__init__(text.translate(_TO_SIMPLIFIED), paragraphs, quotations)
        self.role = frozenset(simple)
        self._know(simple)
        self._learn()

    def speakers(self) -> list[str | None]:
        """One for each quotation, as the text writes the name; ``None`` where nobody could be found."""
        found = super().speakers()
        places = {name: self.text.find(name) for name in found if name}
        written = {name: self.written[place : place + len(name)] for name, place in places.items() if place >= 0}
        return [written.get(name or "", name) for name in found]

    def _know(self, names: Iterable[str]) -> None:
        self.names: frozenset[str] = frozenset(names)
        self.lengths = sorted({*map(len, self.names)}, reverse=True)

    def _cue_head(self, index: int) -> tuple[str, bool] | None:
        """The clause next to a quotation without its verb of speech, and whether a sentence begins with it."""
        told = self._introduction(index)
        if told is None:
            after = self._after(index)
            return (after, True) if after else None
        parts = _clauses(told)
        verb = _BEFORE.search(parts[-1][0]) if parts else None
        return (parts[-1][0][: verb.start()], parts[-1][1]) if verb else None

    def _learn(self) -> None:
        """Names: who speaks twice, who begins many sentences, and who speaks once at the beginning of one."""
        everything = range(len(self.quotations))
        cues = [cue for index in everything if (cue := self._cue_head(index))]
        cores = [core for clause, is_initial in cues if is_initial and not _PRONOUN.match(core := _core(clause)[0])]
        speaking = Counter(map(_beginning, cores))
        speaking.update(core for core in cores if len(core) == 2 and _could_be_name(core) and _beginning(core) != core)
        acting = Counter(
            name
            for index in everything
            for clause, is_initial in _clauses(self.gap(index))
            for name in self._actors(_core(clause)[0])
            if is_initial
        )
        called = {match[1] for index in everything if (match := _CALLED.match(self.said(index)))}
        known = {name for name, count in speaking.items() if count > 1 and len(name) > 1}
        known |= {name for name, count in acting.items() if count >= _OFTEN or (count > 1 and name in speaking)}
        self._know({*self.role, *known, *(acting.keys() & called)})
        self._know(self.names | {name for name in speaking if len(name) > 1 and not self._name_at(name)})

    def _actors(self, core: str) -> Iterator[str]:
        for length in (2, 3, 4):
            name = core[:length]
            if core[length : length + 1] in _FOLLOWS and _could_be_name(name) and not _FOLLOWS & {*name}:
                yield name

    def _name_at(self, text: str, place: int = 0) -> str | None:
        """The longest name at a place of a text."""
        for length in self.lengths:
            name = text[place : place + length]
            if name in self.names and (length > 1 or text[place + 1 : place + 2] in _FOLLOWS):
                return name
        return None

    def _introduction(self, index: int) -> str | None:
        """The narration before a quotation up to the verb of speech or colon that introduces it."""
        gap, own = self.gap(index).rstrip(), self.own(index).rstrip()
        if _COLON.search(gap):
            return gap[:-1].rstrip()
        bare = own.rstrip("，,")
        verb = _BEFORE.search(bare)
        return gap.rstrip("，,") if verb and not _HEARD.search(bare[: verb.start()]) else None

    def _after(self, index: int) -> str | None:
        """The words before the verb of speech in the clause after a quotation."""
        match = _AFTER.match(self.tail(index).lstrip("，, 　"))
        return None if match is None or _HEARD.search(match["head"]) else match["head"]

    def is_spoken(self, quotation: Quotation, paragraph: Paragraph) -> bool:
        """Whether a quotation is speech."""
        before = self.text[max(paragraph.start, quotation.left - 40) : quotation.left].rstrip()
        is_ended = self.text[quotation.start : quotation.end].rstrip("’'』」 \n").endswith(_ENDED)
        if not before:
            leading = self.text[max(0, quotation.left - 40) : quotation.left].rstrip()
            return not (_COLON.search(leading) and _CITED.search(leading[:-1]))
        if _COLON.search(before):
            return not _CITED.search(before[:-1].rstrip())
        if before[-1] in "，,；;":
            return is_ended and not _CITED.search(before[:-1])
        if before[-1] in '。！？!?…—”」』"）)':
            return is_ended or quotation.right >= paragraph.end
        return bool(_BEFORE.search(before)) and (is_ended or before.endswith("声"))

    def speaker(self, index: int) -> str | None:
        """Who speaks a quotation."""
        if self.quotations[index].is_resumed:
            return self.last()
        told = self._introduction(index)
        if told is not None:
            parts = _clauses(told)
            return self._introduced(index, parts) if parts else self.takes_turn(index)
        own, after = self.own(index).strip(), self._after(index)
        if after is not None:
            subject, kind = self._subject(after, is_initial=True)
            return subject if kind == "name" or subject in ("我", "俺") else self._about(own) or self.takes_turn(index)
        if own:
            return self._about(own) or (None if self.is_first(index) else self.last())
        return self._about(self.tail(index)) or self.takes_turn(index)

    def _introduced(self, index: int, parts: list[tuple[str, bool]]) -> str | None:
        """Backwards from the clause that introduces a quotation to the nearest subject that fits it."""
        last_clause, is_initial = parts[-1]
        verb = _BEFORE.search(last_clause)
        head = last_clause[: verb.start()] if verb else last_clause
        objects, several = self._objects(last_clause), bool(_PLURAL.search(last_clause))
        subject, kind = self._subject(head, is_initial=is_initial)
        if kind == "name" or subject in ("我", "俺"):
            return subject
        is_pronoun, agent = kind == "pronoun", subject if kind == "agent" else None
        for clause, _ in reversed(parts[:-1]):
            subject, kind = self._subject(clause)
            fits = kind == "name" and (not several or _SEVERAL.search(subject))
            if fits and not any(self.is_same(subject, name) for name in objects):
                return subject
            if not kind and _COMES_IN.match(clause):
                return agent
            agent = agent or (subject if kind == "agent" else None)
        last, partner = self.last(), self.partner()
        if agent or several or (not is_pronoun and len(_beginning(_core(head)[0])) > 1):
            return agent
        if _ASKS_AGAIN.search(last_clause) or (is_pronoun and self.is_first(index) and len(parts) == 1):
            return partner
        return partner if last is not None and any(self.is_same(last, name) for name in objects) else last

    def _subject(self, clause: str, *, is_initial: bool | None = None) -> tuple[str, str]:
        """Who a clause is about, by what it begins with, and whether that is a name, a pronoun or an agent.

        Args:
            clause: Without the verb of speech, where it introduces a quotation.
            is_initial: Of a clause that introduces a quotation, whether a sentence begins with it; then the subject
                may be somebody whom nothing else names.
        """
        if _ANYBODY.match(clause):
            return "有人", "name"
        core, is_passive = _core(clause)
        pronoun = _PRONOUN.match(core)
        if pronoun and core[pronoun.end() :][:1] not in ("的", "之"):
            return pronoun[0], "pronoun"
        if appears := _APPEARS.search(clause):
            return _cut(appears["noun"]), "name"
        name = self._name_at(core)
        if name and core[len(name) :][:1] not in ("的", "之"):
            rest = core[len(name) :]
            if title := _TITLE.match(rest):
                name += title[0]
            elif rest[:1] in ("与", "和", "同", "、", "及", "并") and (other := self._name_at(rest, 1)):
                name += rest[0] + other
            return name, "agent" if is_passive else "name"
        if group := _GROUP.match(clause) or _GROUP.match(core):
            return _cut(group[0]), "name"
        found = _beginning(core) if is_initial is not None else ""
        is_led = core != clause
        return (found, "name") if len(found) > 1 and (is_initial or is_led) else ("", "")

    def _objects(self, clause: str) -> list[str]:
        """The names that are spoken to, looked at, or dealt with in a clause."""
        marks = (place + 1 for place, character in enumerate(clause) if character in _MARKS_OBJECT)
        starts = (place + len(clause[place:]) - len(_POINTER.sub("", clause[place:], count=1)) for place in marks)
        return [name for place in starts if (name := self._name_at(clause, place))]

    def _about(self, told: str) -> str | None:
        """Who narration without a verb of speech is about."""
        subjects = (self._subject(clause) for clause, _ in reversed(_clauses(told)))
        return next((subject for subject, kind in subjects if kind == "name"), None)

    def called(self, index: int) -> list[str]:
        """The person whom a quotation calls by name at its beginning."""
        said = self.said(index)
        name = self._name_at(said)
        return [name] if name and said[len(name) : len(name) + 1] in tuple("，！!,：、") else []

    def is_same(self, name: str, other: str) -> bool:
        """Whether two names may be one person's: one ends in the other, or both are the role's."""
        if name == other or (name in self.role and other in self.role):
            return True
        return min(len(name), len(other)) > 1 and (name.endswith(other) or other.endswith(name))
