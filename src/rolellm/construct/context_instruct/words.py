"""Word lists of the offline checks; ours, and short on purpose."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rolellm.records import Language

_STOP_EN = """
the and but for nor yet you your yours are was were been being have has had having does did doing done will would
shall should can could may might must not what which who whom whose when where why how that this these those there
here then than them they their theirs him his her hers she its our ours all any both each few more most other others
some such only own same too very just now once again into out off over under about above after before between down
during from further through until with without because while upon against say says said saying tell tells told think
thinks thought know knows knew make makes made get gets got let one ever never always also even still much many nobody
everyone everybody nothing anything something everything yes aye nay well like want wants wanted don didn doesn isn
wasn won it's i'm i'll i've i'd you're you'll don't didn't doesn't isn't wasn't won't can't that's what's there's
"""
_STOP_ZH = """
什么 怎么 怎样 如何 为何 为什么 哪里 哪儿 哪个 哪位 谁的 多少 几个 是否 可以 可是 但是 不过 因为 所以 如果 虽然 而且
或者 以及 这个 那个 这些 那些 这里 那里 这样 那样 他们 我们 你们 她们 自己 大家 别人 一个 一些 一样 没有 不是 就是
还是 只是 已经 曾经 当时 那时 现在 时候 之后 之前 以后 以前 的话 知道 觉得 认为 看来 说道 起来 下来 出来 不会 不能
不要 不敢 莫要 便是 乃是 若是 倒是 也是 都是 洒家 在下 您的 你的 我的 他的
"""
#: Words that carry no matter of their own.
STOP_WORDS: Final = MappingProxyType[Language, frozenset[str]](
    {"en": frozenset(_STOP_EN.split()), "zh": frozenset(_STOP_ZH.split())}
)

_NO_NAMES = """
i god gods lord heaven heavens sir lady madam madame mister mr mrs miss ms dr doctor majesty highness grace honour
honor excellency king queen prince princess captain general christmas english monday tuesday wednesday thursday friday
saturday sunday january february march april may june july august september october november december oh ah o no yes
aye nay well
"""
#: Capitalised without naming anyone that a story would have to hold.
NO_NAMES: Final = frozenset(_NO_NAMES.split())

#: Surnames that begin few other words; the commonest, not all.
SURNAMES: Final = frozenset(
    "赵李周吴郑王冯陈褚卫蒋沈韩杨朱秦吕张曹魏陶姜邹窦苏潘葛郎鲁韦袁柳鲍薛贺倪罗郝顾孟萧尹宋庞项祝董梁杜阮贾郭林徐邱骆蔡"
    "胡霍虞卢刘关欧夏彭唐廖邓孙"
)
#: Surnames of two characters.
LONG_SURNAMES: Final = ("诸葛", "司马", "欧阳", "上官", "夏侯", "公孙", "慕容", "司徒", "令狐", "东方", "皇甫", "尉迟")
_NO_SURNAMES = """
关怀 关联 关切 关键 关心 陈述 陈设 陶醉 陶冶 张扬 张贴 张开 张望 张罗 鲁莽 孙子 孙儿 孙女 罗汉 唐人 唐突 祝福 祝愿
顾问 顾客 顾虑 徐徐 徐行 胡说 胡闹 胡言 胡椒 胡桃 苏醒 朱门 朱红 朱砂 朱雀 周全 周旋 杨柳 杨梅 林檎 林木 葛藤 卫星
杜鹃 王府 王后 王爷 王子 王侯 王权 王道 王母 贺喜 柳绿 姜汤 夏日 夏天 秦汉 曹军 曹营 宋体 张口 张嘴 李子 梁柱
"""
#: Words that begin with one of them and name nobody, whatever jieba's dictionary says.
NO_SURNAMES: Final = frozenset(_NO_SURNAMES.split())
