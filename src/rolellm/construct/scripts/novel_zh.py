"""Who speaks in Chinese prose: by the clause that brings a quotation in, by the one after it, or by turns.

The names are learned from the text itself: what stands before verbs of speech again and again is somebody. The subject
of the clause that brings in a quotation is then looked for backwards, clause by clause, at the clauses' beginnings,
because Chinese leaves a subject out as long as it stays the same. All of this is our own choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rolellm.construct.scripts.quotes import REACH, Paragraph, Quotation, Surroundings, Verdict, verdicts, word_list
from rolellm.construct.scripts.reading import Hints

# --- The words by which Chinese prose brings in speech, and by which its clauses begin


#: What comes before the subject of a clause and says nothing about it.
LEADS = word_list(
    "却说 且说 话说 话表 再说 单说 只见 但见 忽见 又见 正见 早见 便见 只听得 忽听得 又听得 猛听得 只听见 "
    "忽听 只听 又听 只闻得 忽闻得 闻得 听得 听见 看见 原来 不想 不料 不期 谁知 哪知 那知 谁料 忽然 忽的 忽地 "
    "突然 猛然 于是 接着 随后 然后 后来 这时候 那时候 这时 此时 那时 当时 当下 须臾 少时 少顷 霎时 顷刻 "
    "不一时 不多时 只是 但是 可是 不过 然而 而且 因此 所以 只 但 而 却 又 便 即 就 遂 忽 被 且 才 正 那边 "
    "这边 旁边 旁 慌得 唬得 吓得 惊得 急得 喜得 气得 一日 忽一日 次日 早有 旁有 内有 当有 幸有 另有 还有 "
    "又有 惟有 惟 你看 且不言 不言 终于 果然 果 结果 最后 今天 昨天 有一天 有 只有 连 还是 还 由于 因为 当 "
    "等到 等 一旁的 坐在一旁的 一边的 旁边的 身后的 身旁的 身边的 对面的 门口的 床上的 年轻的 年老的 可怜的 "
    "聪明的 善良的 老实的 真个 真是 下面 上面 里面 外面 班中 班部中 一向 向来 显然 没想到 想不到 "
)
_LEADS = re.compile("(?:" + "|".join(sorted(LEADS, key=lambda word: -len(word))) + ")")
_POINTERS = re.compile("(?:那个|这个|那位|这位|那名|这名|那|这|好个|好|一[个名位只条起员]|个)")

#: How something is said; taken off the end of what stands before a verb of speech.
MANNERS = word_list(
    "又 也 都 即 便 就 才 却 再 乃 遂 忙 急 慌 忽 俱 齐 连 各 自 亦 只 且 方 还 复 因 猛 直 先 后 更 竟 高 "
    "低 冷 苦 微 狂 发声 咬牙 咬牙切齿 跺脚 顿足 拍手 鼓掌 拍掌 一齐 齐声 一同 同声 异口同声 忽然 连忙 急忙 "
    "慌忙 赶忙 赶紧 赶快 立刻 立即 马上 当即 随即 随后 顿时 不禁 不由得 不由 忍不住 终于 继续 接着 跟着 突然 "
    "最后 首先 依然 仍然 仍 只好 只得 似乎 好像 故意 特意 笑 冷笑 大笑 暗笑 微笑 苦笑 陪笑 赔笑 干笑 狂笑 "
    "嘲笑 讥笑 傻笑 微微一笑 笑了笑 一笑 笑着 笑呵呵 笑嘻嘻 笑吟吟 笑眯眯 呵呵 哈哈 嘿嘿 嘻嘻 呵呵笑 "
    "哈哈大笑 呵呵大笑 嘻嘻笑 怒 大怒 发怒 恼 大恼 喜 又喜 大喜 暗喜 甚喜 欢喜 惊 大惊 心惊 失惊 惊讶 惊奇 "
    "惊喜 惊慌 吃惊 诧异 奇怪 好奇 哭 大哭 痛哭 泣 哭着 含泪 流泪 垂泪 哽咽 抽泣 叹 长叹 叹气 叹息 叹了口气 "
    "怕 喝 大喝 断喝 怒喝 喝令 骂 大骂 笑骂 怒骂 叫 大叫 高叫 惊叫 喊叫 高声 厉声 应声 低声 轻声 小声 大声 "
    "柔声 沉声 朗声 尖声 悄声 失声 颤声 细声 粗声 恨声 正色 答 回 应 问 惊问 追问 反问 动问 奏 启 启奏 上奏 "
    "拜奏 回奏 奏上 上启 回报 报 禀 禀报 告 祷告 传报 报告 劝 说 讲 称扬 称赞 称 赞 赞叹 赞扬 夸 吩咐 分付 "
    "嘱咐 叮嘱 命 命令 令 教 传旨 传令 宣 唱 吟 念 谢 拜谢 谢恩 对 躬身 叩头 叩首 磕头 礼拜 跪 跪下 下跪 "
    "下拜 拜 合掌 合十 叉手 点头 点点头 点了点头 摇头 摇摇头 摇了摇头 摇手 摆手 挥手 拱手 作揖 抱拳 欠身 "
    "起身 上前 近前 向前 进前 前来 出来 过来 走来 仰面 仰天 抬头 低头 回头 转身 皱眉 皱着眉头 皱了皱眉 "
    "耸耸肩 耸了耸肩 心中 心里 心下 心内 心想 暗暗 暗自 暗 默默 自己 自言自语 喃喃自语 喃喃 自语 想 思 思量 "
    "寻思 思想 暗想 沉吟 沉吟片刻 沉思 方才 醒悟 顿然 恍然 大悟 恍然大悟 满口 开口 接口 插口 插嘴 插话 开言 "
    "着 了 一声 一句 几声 片刻 半晌 良久 一会儿 慢慢 缓缓 淡淡 冷冷 轻轻 悠悠 急急 匆匆 狠狠 恶狠狠 气冲冲 "
    "怒冲冲 兴冲冲 乐呵呵 怯生生 懒洋洋 慢吞吞 慢条斯理 气呼呼 认真 平静 温柔 温和 生气 愤怒 高兴 兴奋 激动 "
    "得意 无奈 严肃 严厉 焦急 着急 伤心 难过 失望 不满 不耐烦 不高兴 满意 坚定 果断 犹豫 迟疑 吞吞吐吐 "
    "结结巴巴 支支吾吾 有些 有点 十分 非常 很 十分欢喜 满心欢喜 欢喜不胜 地 得 的 忙不迭 连连 不住 不停 再三 "
    "反复 欣然 忻然 愤然 慨然 毅然 公然 当然 果然 率先 抢先 抢着 争着 帮腔 解释 补充 提醒 安慰 抱怨 抗议 "
    "哀求 恳求 央求 催促 打断 重复 附和 嘀咕 嘟囔 咕哝 回答 答应 回应 惊呼 感叹 感慨 大发 呼 呼喊 喊 嚷 吼 "
    "怒吼 吼叫 尖叫 嚷嚷 传 传话 呵斥 训斥 斥责 斥 责备 责怪 警告 威胁 建议 提议 宣布 声明 承认 否认 强调 "
    "保证 发誓 坦白 招呼 打招呼 请求 请教 打听 询问 质问 逼问 诘问 盘问 求 求饶 讨饶 "
)
_MANNERS = frozenset(MANNERS)
_LONGEST_MANNER = max(map(len, MANNERS))

_VERBS = word_list(
    "道 曰 云 说 问 答 讲 喊 叫 骂 吼 嚷 喝 叹 唤 呼 念 吟 唱 笑 哭 劝 回 报 奏 禀 应 嘱 求 催 斥 谓 言 吩咐 "
    "分付 嘱咐 叮嘱 命令 宣布 回答 答应 回应 应声 解释 补充 反问 追问 质问 询问 感叹 感慨 惊呼 惊叫 尖叫 "
    "大叫 嘀咕 嘟囔 咕哝 喃喃 自语 自言自语 低语 低吟 耳语 抱怨 抗议 哀求 央求 恳求 催促 提醒 安慰 劝说 打断 "
    "重复 附和 开口 接口 接话 接腔 插嘴 插话 搭话 搭腔 发话 帮腔 打趣 调侃 嘲笑 讥讽 呵斥 训斥 斥责 责备 "
    "怒吼 咆哮 嚷嚷 呼喊 大喊 招呼 警告 威胁 建议 提议 承认 强调 保证 发誓 请求 请教 打听 称赞 赞叹 夸奖 "
    "夸赞 介绍 总结 推测 猜测 说明 告诉 继续 下令 "
)
_VERB = "(?:" + "|".join(sorted(_VERBS, key=lambda word: -len(word))) + ")"
#: A clause after a quotation that says who spoke it: head, verb and what trails it.
AFTER = re.compile(
    rf"(?P<head>[^，。！？：；、\s“”\"「」『』]{{0,18}}?)(?P<verb>{_VERB})(?:道|说|着|了|起来|出声|出来|一声|一句|几声|一遍|个不停)*"
    r"(?=[，。！？；…—]|$)"
)
#: What stands right before a quotation and says that it is spoken.
BEFORE = re.compile(
    rf"(?:{_VERB}|日|教|令|命|告|启|传旨|旨|骂|思|想|寻思|忖|暗想|心想)(?:着|了|道|说|曰|云|声|一声|几声|个|几个|一句)*$"
)
#: Speech without a colon before it: ``叫一声"变！"``.
SHOUTED = re.compile(
    r"(?:叫|喊|喝|骂|嚷|吼|呼|唤|说|道|念|问|答|答应|应|哼|啐)(?:道|了)?(?:一声|几声|声|几个|了声|一句|了一句)$|(?:[^叫唤称说念]|口|只|连|高|大|声)(?:叫|喊|喝|道|曰|说|问)$"
)
_CITED = re.compile(
    r"(?:(?:歌|诗|词|赋|赞|偈|表|颂|谚|谚语|俗语|常言|俗话|老话|古语|自古|古人|古|圣经|经|易|历|谣|诗》|》)\s*(?:有)?(?:云|曰|道|说|言)"
    r"|(?:写|书|镌|刻|题|印|绣|标)(?:着|有|道|了|下|上)?[^，。！？]{0,10}|(?:字|旨意|上云|榜文|批文|为证|正是|正所谓))$"
)
HEARD = re.compile(
    r"(?:听|闻|见|据|没|不|想|要|话|如|虽|再|难|来|小|传|学|假|按|照|胡|乱|瞎|别|莫|休|能|会|敢|可|该|好|所|并|未|无)$"
)
GROUP = re.compile(
    r"(?:(?:那|这|许多|无数|所有的?|满[山城屋堂]的?)?(?:众|群|诸)|那些|这些|一群|那群|这群|一班|那班|一伙|那伙|一队|几个|几位|几名|数个|"
    r"[两二三四五六七八九十百千]+(?:个|位|名|人)|那[两二三四五六七八九十]+|大众|大家)(?P<noun>[\u4e00-\u9fff]{0,4})"
)
PLURAL = re.compile(r"(?:都|齐|一齐|齐声|俱|异口同声|同声|纷纷|皆|一个个|各个|个个|七嘴八舌)")
#: After an appearance comes the one who appears: ``跳出一名石猴``.
APPEARS = re.compile(
    r"(?:(?P<surely>[闪转][出过上来](?:了)?)|(?:跳|闪|走|转|撞|钻|冲|跑|飞|站|来|过|进|出|立|坐|伸|奔|涌|闯|迎)"
    r"(?:出来|进来|过来|出|上|来|了|过|着|起|下)*)"
    r"(?P<counted>(?:[一两二三四五六七八九十几数]+)?[个名位员只条群班队伙])?(?P<noun>[\u4e00-\u9fff]{2,10}(?:、[\u4e00-\u9fff]{2,6})*)$"
)
_PLACE = re.compile(r"[中上下里内外前后边间处去]$")
#: The same of somebody seen or met: ``忽见一个巡海的夜叉``.
MET = re.compile(
    r"(?:[^，]{0,6}有|[只忽早又正就却猛恰]*(?:看见|遇见|遇到|碰见|碰到|见|遇))(?:了|有)?(?:[一两二三四五六七八九十几数]+)?[个名位员群班伙队]"
    r"(?P<noun>[\u4e00-\u9fff]{1,14})$"
)
#: What the word for a person ends with.
PERSON = re.compile(
    r"[汉人怪妖婆叟翁僧尼童女妇兵将王官臣鬼神仙龙贼匪徒生夫娘爷爹哥姐弟妹叔伯公帝后妃师客猴鬟婢仆丐郎嫂姑]$|(?:孩子|老头|老子|小子|女子|男子|汉子|胖子|瘦子|儿子|道士|护士|战士|队长|老板|司机|伙计|小二)$"
)
#: Somebody comes in who is not known yet; the one before has nothing more to say.
COMES_IN = re.compile(r"(?:早|旁|当|幸|内|另|忽|又)有")
ANYBODY = re.compile(r"(?:.{0,4}(?:有人|有个人|一人|某人))(?=[一-鿿]{0,6}$)")
#: A clause that makes its object the subject of what follows: ``把那九曜星战得筋疲力软``.
MADE = re.compile(r"(?:把|将|打得|唬得|吓得|慌得)(?P<whom>[^，]+?)(?:[战打杀唬吓骂羞气急慌惊喜说问笑逗累]|弄|搞)得")
#: A clause that is there for another one; its subject is not what the passage is about.
ASIDE = re.compile(
    r"(?:奈何|怎奈|争奈|无奈|虽|若|倘|如果|要是|假如|即使|即便|尽管|除非|好像|好似|仿佛|宛如|犹如|恰似|不管|无论|不论)"
)
EACH = re.compile(r"(?:一个个|个个|各各|各个|人人)")
#: A clause that only says when.
WHEN = re.compile(r"(?:间|时|处|后|候|日|天|夜|晚|晨|毕|了|罢|已|刻|久)$")
PRONOUNS = re.compile("(?:他们|她们|它们|咱们|咱俩|他俩|我们|俺们|他|她|它|我|俺)")
#: Words after a name that make it another's: ``悟空道人`` is not 悟空.
TITLES = word_list(
    "道人 道长 真人 真君 和尚 长老 大师 禅师 法师 师父 师傅 师兄 师弟 师姐 师妹 先生 老爷 少爷 娘娘 夫人 "
    "太太 小姐 公子 姑娘 大人 将军 元帅 行者 菩萨 天王 龙王 魔王 国王 大王 鬼王 太子 公主 员外 掌柜 妈妈 "
    "爸爸 母亲 父亲 爷爷 奶奶 哥哥 弟弟 姐姐 妹妹 叔叔 阿姨 舅舅 伯伯 老师 医生 警官 队长 经理 主任 嫂 婶 "
)
_TITLES = re.compile("(?:" + "|".join(TITLES) + ")")
#: No name has one of these.
NEVER = frozenset(
    "的了着把将被对向从到是有不没你我他她它吗呢吧啊什么怎谁一两几每些就都也却便又还只已很最更且或若所，。！？"
    "：；、（）…—·《》〈〉0123456789 "
)
#: A name does not begin with one of these.
NEVER_FIRST = frozenset(
    "听看见说想走拿问答叫喊笑哭怒喝骂忽正再随因以为于在与和跟给让使令教请去来回过出进上下起坐站跪拜伸抬放抓推"
    "打立接转低睁闭望瞧盯指点摇挥叹沉自心口手眼头言话语此其"
)
#: What follows a name in a clause of which it is the subject.
FOLLOWS = frozenset(
    "是有在也都又就便才却即忙急连正已将把被对向朝从与跟和给让叫令教着了过走来去到上下进出回看见听闻说道问答喊"
    "笑哭怒喝骂想心忽突慢轻低一点摇转站坐跪拜伸抬拿放抓拉推打起立躬叩惊吃喜欢气叹皱睁闭望瞧盯指接不没只还再终"
    "几先则亦乃遂因由往猛冷微苦大高厉应仰合领依顿登飞跳奔跑冲，"
)


_TRADITIONAL = (
    "與兩嚴個為爲麼樂書亂爭雲亞親僕從們眾衆夥會傳傷優儘兒軍沖衝幾齣別則勁勸動單歷厲變號嘆歎後嚇嗎啟啓員應"
    "響喚囑嚐圍國聖聲處備復複頭誇奪奮獎媽婦嬸學孫實寧對尋將盡師帥帶幫幹並併莊慶牀開異棄張強彈歸當錄徹憐總"
    "懇惡惱憤驚慣懶戰撲執護報擔擁揮據擺搖斷無時顯曉條來殺櫃標機歡畢氣漢沒淚測溫滿煩爺狀猶獨皺盤眞禮禱稟稱"
    "競筆緊約紛細終經結給繼續緩罷聳職聰聽肅勝腳臉薩蘇補裏裡見覺計認討讓訓議講許論諷證訴詞詩詰話詢該詫語說"
    "説請諸誰調諺謂謝謠責質賊賠贊讚趕躍轉軟輕邊過邁還這進連遲釋裝鑽長門閃閉問闖間聞隊隨難靜靈頃須頓頌領題"
    "願顫飛餘饒馬駡罵鬧點齊龍囉喫啞嘗羣於雖現發雙獸鬆闔喲慇嘰噹誌讀譁諾謹賢識譏譴誠賓覽觀關閣陣陳陰陽雜雞"
    "電韓顏風飯館駕騎騙驕體髮魚鳥鳳黃齡"
)
_SIMPLIFIED = (
    "与两严个为为么乐书乱争云亚亲仆从们众众伙会传伤优尽儿军冲冲几出别则劲劝动单历厉变号叹叹后吓吗启启员应"
    "响唤嘱尝围国圣声处备复复头夸夺奋奖妈妇婶学孙实宁对寻将尽师帅带帮干并并庄庆床开异弃张强弹归当录彻怜总"
    "恳恶恼愤惊惯懒战扑执护报担拥挥据摆摇断无时显晓条来杀柜标机欢毕气汉没泪测温满烦爷状犹独皱盘真礼祷禀称"
    "竞笔紧约纷细终经结给继续缓罢耸职聪听肃胜脚脸萨苏补里里见觉计认讨让训议讲许论讽证诉词诗诘话询该诧语说"
    "说请诸谁调谚谓谢谣责质贼赔赞赞赶跃转软轻边过迈还这进连迟释装钻长门闪闭问闯间闻队随难静灵顷须顿颂领题"
    "愿颤飞余饶马骂骂闹点齐龙啰吃哑尝群于虽现发双兽松合哟殷叽当志读哗诺谨贤识讥谴诚宾览观关阁阵陈阴阳杂鸡"
    "电韩颜风饭馆驾骑骗骄体发鱼鸟凤黄龄"
)
_TO_SIMPLIFIED = str.maketrans(_TRADITIONAL, _SIMPLIFIED)


def simplified(text: str) -> str:
    """A text with the traditional characters of these lists made simple, character by character."""
    return text.translate(_TO_SIMPLIFIED)


def without_lead(clause: str) -> tuple[str, bool]:
    """A clause without what leads up to its subject, and whether it stands in the passive (``被``)."""
    is_passive = False
    while match := _LEADS.match(clause):
        is_passive = is_passive or match.group() == "被"
        clause = clause[match.end() :]
    return clause, is_passive


def without_pointer(clause: str) -> str:
    """A clause without a pointing word in front: ``那大圣`` is 大圣."""
    match = _POINTERS.match(clause)
    return clause[match.end() :] if match else clause


def without_manner(head: str) -> str:
    """What stands before a verb of speech, without how it is said."""
    while head:
        length = next((size for size in range(_LONGEST_MANNER, 0, -1) if head[-size:] in _MANNERS), 0)
        if not length:
            break
        head = head[:-length]
    return head


def title_of(rest: str) -> str | None:
    """The title that stands right after a name and makes it a longer one."""
    match = _TITLES.match(rest)
    return match.group() if match else None


def without_title(name: str) -> str:
    """A name without the title it ends with, unless it is nothing else."""
    title = next((title for title in TITLES if name.endswith(title) and name != title), "")
    return name.removesuffix(title)


def could_be_name(text: str) -> bool:
    """Whether a string of characters looks like the name of somebody."""
    if "·" in text:
        return 3 <= len(text) <= 16
    if len(text) > 2 and _PLACE.search(text):
        return False
    return 1 <= len(text) <= 7 and not NEVER & {*text.removesuffix("将")} and text[0] not in NEVER_FIRST


def is_cited(before: str) -> bool:
    """Whether what leads up to a quotation says that it is written or cited."""
    return bool(_CITED.search(before.rstrip("：: 　\n")))


# --- The words before a Chinese quotation: whether they make it speech


#: What brings in a quotation; a semicolon after a verb of speech is a misprint.
COLON = re.compile(r"[：:]\s*$|(?<=[道曰云日回说问])[；;]\s*$")
_ENDED = tuple("。！？…—～，；!?.,~．﹗-")


def is_spoken(text: str, paragraph: Paragraph, quotation: Quotation) -> bool:
    """Whether a quotation is speech: no quoted word, no title, nothing written, cited or sung by nobody."""
    if quotation.is_resumed:
        return True
    before = text[max(paragraph.start, quotation.left - 40) : quotation.left].rstrip()
    if not before:
        leading = text[max(0, quotation.left - 40) : quotation.left].rstrip()
        return not (COLON.search(leading) and is_cited(leading.splitlines()[-1]))
    is_ended = text[quotation.start : quotation.end].rstrip("’'』」 \n").endswith(_ENDED)
    if COLON.search(before):
        return not is_cited(before)
    if before[-1] in "，,；;":
        return is_ended and not is_cited(before[:-1])
    if before[-1] in '。！？!?…—”」』"）)':
        return is_ended or quotation.right >= paragraph.end
    return bool(SHOUTED.search(before)) and (is_ended or before.endswith("声"))


# --- The names of a Chinese novel, and the subject at the beginning of a clause


CLAUSE = re.compile(r"[^，。！？；：:,!?;\n…—“”\"「」『』（）()]+")
_SENTENCE_END = '。！？!?…\n“”"」』'
_LINKS = "与和同、及并跟"
_MARKS_OBJECT = "对向朝冲与和跟同问叫骂怨唤谓教令命把将被望劝扯揪定着住见给"
_NO_PREFIX = FOLLOWS | NEVER | NEVER_FIRST | frozenset(_MARKS_OBJECT + _LINKS)
_ENDS_GROUP = FOLLOWS | frozenset("俱齐皆各拍鼓称自尽同慢慌丢")
_ACTS = FOLLOWS - frozenset("将大")
_STOPS = _NO_PREFIX | {""}
_LONGEST_PREFIX = 4
# A clause is looked at at its beginning and its end only.
_LONGEST_CLAUSE = 60
_CALLED = re.compile(r"\s*(?P<name>[\u4e00-\u9fff]{2,4})[，！,!]")
_FAMILIAR = re.compile(r"[老小阿][\u4e00-\u9fff]")
# How often something must begin sentences to be taken for somebody: our choice.
_OFTEN = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a clause.

    Attributes:
        kind: A ``name``, a ``group``, a ``pronoun``, ``somebody`` whose name is not known, the ``agent`` of a
            passive, or a ``stranger``, who comes in and is not named here.
        text: As the text has it.
        is_several: Whether it means more than one.
    """

    kind: Literal["name", "group", "pronoun", "somebody", "agent", "stranger"]
    text: str
    is_several: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of narration.

    Attributes:
        text: Without the marks around it.
        is_initial: Whether a sentence begins with it.
    """

    text: str
    is_initial: bool


def clauses(text: str) -> list[Clause]:
    """The clauses of a passage that follows the end of a sentence."""
    found: list[Clause] = []
    for match in CLAUSE.finditer(text):
        clause = match.group().strip(" 　-")
        if clause:
            place = match.start()
            is_initial = place == 0 or text[place - 1] in _SENTENCE_END or _only_says_when(found)
            if len(clause) > _LONGEST_CLAUSE:
                clause = clause[: 2 * _LONGEST_CLAUSE // 3] + clause[-_LONGEST_CLAUSE // 3 :]
            found.append(Clause(clause, is_initial))
    return found


def _only_says_when(before: list[Clause]) -> bool:
    return bool(before) and before[-1].is_initial and bool(WHEN.search(before[-1].text))


class Names:
    """The names of a text, found by the longest first.

    Args:
        names: All of them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def at(self, text: str, place: int = 0) -> str | None:
        """The longest name that stands at a place of a text."""
        for length in self._lengths:
            name = text[place : place + length]
            if name in self._names and (length > 1 or text[place + 1 : place + 2] in FOLLOWS):
                return name
        return None

    def objects(self, clause: str) -> list[str]:
        """The names that are spoken to, looked at, or dealt with in a clause."""
        found = []
        for place, character in enumerate(clause):
            if character in _MARKS_OBJECT:
                start = place + 1
                start += len(clause[start:]) - len(without_pointer(clause[start:]))
                name = self.at(clause, start)
                if name:
                    found.append(name)
        return found

    def subject(self, clause: str, *, is_cue: bool = False, is_initial: bool = False) -> Subject | None:
        """Who a clause is about, by what it begins with; ``None`` where it goes on about someone named before.

        Args:
            clause: Without the verb of speech, where it brings in a quotation.
            is_cue: Whether it brings in a quotation; then what nobody knows may be a name, too.
            is_initial: Whether a sentence begins with it.
        """
        stripped, is_passive = without_lead(clause)
        if not stripped or ASIDE.match(stripped):
            return None
        pronoun = PRONOUNS.match(stripped)
        if pronoun and stripped[pronoun.end() :][:1] not in ("的", "之"):
            return Subject("pronoun", pronoun.group(), pronoun.group()[-1] == "们" or "俩" in pronoun.group())
        if ANYBODY.match(clause):
            return Subject("somebody", "有人")
        core = without_pointer(stripped)
        appears = APPEARS.search(stripped)
        if appears and (found := self._appearing(appears)):
            return found
        if (met := MET.match(clause)) and (found := self._met(met["noun"])):
            return found
        named = self._named(core, is_cue)
        if named:
            if len(named.text) == 1:
                named = replace(named, text=stripped[: len(stripped) - len(core)] + named.text)
            return replace(named, kind="agent") if is_passive else named
        if group := GROUP.match(stripped):
            return Subject("group", _group(group), is_several=True)
        if made := MADE.match(clause):
            return self._named(without_pointer(made["whom"]), is_cue=False)
        if core != stripped and (pointed := _pointed_at(core)):
            return Subject("somebody", stripped[: len(stripped) - len(core)] + pointed)
        if not is_cue:
            return Subject("stranger", "") if COMES_IN.match(clause) else None
        return self._unknown(stripped, is_initial, is_led_in=clause[: -len(stripped)][-1:] in tuple("有见闻得出"))

    def _appearing(self, appears: re.Match[str]) -> Subject | None:
        noun = without_pointer(appears["noun"])
        if appears["surely"] or appears["counted"] or self.at(noun) == noun:
            return Subject("somebody", noun, "、" in noun or _is_several(appears["counted"] or noun))
        return None

    def _met(self, noun: str) -> Subject | None:
        for place in range(len(noun) - 1):
            name = self.at(noun, place)
            if name:
                return Subject("name", name, _is_several(name))
        noun = noun.rpartition("的")[2]
        return Subject("somebody", noun) if PERSON.search(noun) and could_be_name(noun) else None

    def _named(self, core: str, is_cue: bool) -> Subject | None:
        start = 0
        name = self.at(core)
        while name is None and start < _LONGEST_PREFIX and core[start : start + 1] not in _STOPS:
            start += 1
            name = self.at(core, start)
        if name is None or (start and not without_manner(core[:start])):
            return None
        end = start + len(name)
        rest = core[end:]
        if rest[:1] in ("的", "之"):
            owned = without_manner(core)
            return Subject("somebody", owned) if is_cue and _is_owned(owned) else None
        if title := title_of(rest):
            return Subject("name", core[: end + len(title)])
        if rest[:1] and rest[0] in _LINKS:
            other = self.at(rest, 1)
            if other:
                return Subject("name", core[: end + 1 + len(other)], is_several=True)
            if rest[0] == "、":
                return Subject("group", without_manner(core), is_several=True)
        return Subject("name", core[:end], _is_several(core[:end]))

    def _unknown(self, stripped: str, is_initial: bool, is_led_in: bool) -> Subject | None:
        core = without_pointer(stripped)
        text = without_manner(core)
        if is_initial and _is_owned(text):
            return Subject("somebody", text)
        parts = re.split(f"[{_LINKS}]", text)
        if not text or not all(part and could_be_name(part) for part in parts):
            return None
        is_pointed = core != stripped or is_led_in
        if not (is_pointed or (is_initial and all(map(_is_short_of_verbs, parts)))):
            return None
        if len(text) == 1:
            text = stripped[: len(stripped) - len(core)] + text
        return Subject("somebody", text, len(parts) > 1 or _is_several(text))


def _group(match: re.Match[str]) -> str:
    noun = match["noun"]
    end = next((place for place, character in enumerate(noun) if character in _ENDS_GROUP), len(noun))
    return match.group()[: len(match.group()) - len(noun) + end]


def _pointed_at(core: str) -> str | None:
    """The noun after ``那`` or ``这`` where it means a person."""
    end = next(
        (place for place, character in enumerate(core[:6]) if place and character in _ENDS_GROUP), min(6, len(core))
    )
    noun = core[:end]
    return noun if len(noun) > 1 and PERSON.search(noun) and could_be_name(noun) else None


def _is_several(name: str) -> bool:
    return name[0] in "众群诸各两二三四五六七八九十百千" or name[-1] == "们"


def _is_short_of_verbs(text: str) -> bool:
    text = without_title(text)
    if len(text) == 1:
        return text not in FOLLOWS
    inner = text[2 if len(text) < 4 else 1 :].removesuffix("将")
    return len(text) > 1 and not FOLLOWS & {*inner}


def _is_owned(text: str) -> bool:
    """Whether it is somebody's somebody: ``小明的妈妈``."""
    owner, _, owned = text.rpartition("的")
    if not (2 <= len(owner) <= 5 and 2 <= len(owned) <= 4) or not all(map(could_be_name, (owner, owned))):
        return False
    return bool(PERSON.search(owned) or title_of(owned))


def learn_names(
    cues: Iterable[tuple[str, bool]], narration: Iterable[str], said: Iterable[str], given: Iterable[str]
) -> Names:
    """Names from the text: who speaks twice, who speaks once under a name of its own, who begins many sentences.

    Args:
        cues: Clauses without their verb of speech, each with whether a sentence begins with it.
        narration: Clauses with which sentences begin.
        said: What is said; it may begin with whom it is said to.
        given: Names that are known.
    """
    speaking: Counter[str] = Counter()
    initial: set[str] = set()
    for clause, is_initial in cues:
        name = without_manner(_core(clause)).rstrip("闻听")
        if could_be_name(name) and not PRONOUNS.match(name):
            speaking[name] += 1
            if is_initial:
                initial.add(name)
    acting = Counter(name for clause in narration for name in _actors(_core(clause)))
    called = {match["name"] for match in map(_CALLED.match, said) if match}
    known = {name for name, count in speaking.items() if count > 1 and (len(name) > 1 or count > 2 or name == "众")}
    known |= {name for name, count in acting.items() if count >= _OFTEN or (count > 1 and name in speaking)}
    known |= {name for name in acting if name in called or _FAMILIAR.fullmatch(name)}
    known |= {name for name in given if name}
    often = Names(known)
    once = {
        name
        for name, count in speaking.items()
        if count == 1 and (name in initial or name in acting) and _is_short_of_verbs(name) and not often.at(name)
    }
    return Names(known | once)


def _core(clause: str) -> str:
    return without_pointer(without_lead(clause)[0])


def _actors(core: str) -> Iterable[str]:
    """What may be the subject at the beginning of a clause: followed by what often follows a subject."""
    for length in (2, 3, 4):
        name = core[:length]
        if core[length : length + 1] in _ACTS and could_be_name(name) and not FOLLOWS & {*name}:
            yield name


# --- Who speaks in Chinese prose: by the clause that brings a quotation in, by the one after it, or by turns


_ASKS_AGAIN = re.compile(r"(?:又|再|复)(?:追|动)?问")
_ANSWERS = re.compile(r"(?:答|回|应)(?:道|曰|云|说|答)?$")
# How long narration may go on about who spoke last without a name.
_RELAYED = 400


@dataclass(slots=True)
class _Scene:
    """What has been said in a scene so far."""

    number: int
    speakers: list[str | None] = field(default_factory=list)
    addressed: str | None = None
    has_asked: bool = False

    def last(self) -> str | None:
        return self.speakers[-1] if self.speakers else None

    def partner(self) -> str | None:
        """The other one of the last two who spoke; nobody where it is not known who was the last."""
        last = self.last()
        if last is None:
            return None
        return next((name for name in reversed(self.speakers[-4:-1]) if name is not None and name != last), None)


def attribute_zh(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
) -> list[Verdict]:
    """A verdict on each quotation of a Chinese text.

    Args:
        text: The text.
        paragraphs: Its paragraphs.
        quotations: Its quotations, in order.
        hints: `names` are taken for names of one person.
    """
    written, text = text, simplified(text)
    hints = replace(hints, names=[*map(simplified, hints.names)])
    spoken = [is_spoken(text, paragraphs[quotation.paragraph], quotation) for quotation in quotations]
    kept = [quotation for quotation, is_spoken in zip(quotations, spoken, strict=True) if is_spoken]
    found = _Attribution(text, paragraphs, kept, hints).speakers()
    if text != written:
        found = [
            name and _as_written(name, text, written, quotation.left)
            for name, quotation in zip(found, kept, strict=True)
        ]
    return verdicts(spoken, found)


def _as_written(name: str, text: str, written: str, place: int) -> str:
    """A name in the characters of the text, where it stands near a place of it."""
    for start, end in ((max(0, place - REACH), place), (place, place + REACH), (max(0, place - 20 * REACH), place)):
        found = text.rfind(name, start, end)
        if found >= 0:
            return written[found : found + len(name)]
    return name


class _Attribution(Surroundings):
    """Goes through the spoken quotations of a text in order."""

    def __init__(
        self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
    ) -> None:
        super().__init__(text, paragraphs, quotations)
        self.role = frozenset(hints.names)
        everything = range(len(quotations))
        self.names = learn_names(
            (cue for index in everything for cue in self._cues(index)),
            (clause.text for index in everything for clause in clauses(self.gap(index)) if clause.is_initial),
            map(self.said, everything),
            hints.names,
        )

    def speakers(self) -> list[str | None]:
        """One for each quotation; ``None`` where nobody could be found."""
        found: list[str | None] = []
        scene = _Scene(-1)
        for index, quotation in enumerate(self.quotations):
            number = self.scene(index)
            if number != scene.number:
                scene = _Scene(number)
            speaker = scene.last() if quotation.is_resumed else self._speaker(index, scene)
            found.append(speaker)
            scene.speakers.append(speaker)
            said = self.said(index)
            scene.addressed = self._addressed(said)
            scene.has_asked = said.rstrip("’'』」 \n").endswith(("？", "?"))
        return found

    def _own(self, index: int) -> str:
        """What stands before a quotation in its own paragraph, after the quotation before."""
        quotation = self.quotations[index]
        start = self.paragraphs[quotation.paragraph].start
        if index:
            start = max(start, self.quotations[index - 1].right)
        return self.text[max(start, quotation.left - REACH) : quotation.left]

    def _cue(self, index: int) -> str | None:
        """The narration before a quotation up to a verb of speech or a colon that brings it in, where there is one."""
        gap = self.gap(index).rstrip()
        if COLON.search(gap):
            return gap[:-1].rstrip()
        own = self._own(index).rstrip()
        if own and own[-1] in "，,":
            bare = own[:-1]
            verb = BEFORE.search(bare)
            return gap[:-1] if verb and not HEARD.search(bare[: verb.start()]) else None
        return gap if own and SHOUTED.search(own) else None

    def _after(self, index: int) -> re.Match[str] | None:
        """The clause after a quotation that says who spoke it."""
        match = AFTER.match(self.tail(index).lstrip("，, 　"))
        return None if match is None or HEARD.search(match["head"]) else match

    def _cues(self, index: int) -> list[tuple[str, bool]]:
        found = []
        cue = self._cue(index)
        if cue:
            parts = clauses(cue)
            verb = BEFORE.search(parts[-1].text) if parts else None
            if verb and verb.start():
                found.append((parts[-1].text[: verb.start()], parts[-1].is_initial))
        elif after := self._after(index):
            found.append((after["head"], True))
        return found

    def _speaker(self, index: int, scene: _Scene) -> str | None:
        cue = self._cue(index)
        if cue is not None:
            return self._by_cue(index, clauses(cue), scene)
        own, tail = self._own(index).strip(), self.tail(index)
        if after := self._after(index):
            subject = self.names.subject(after["head"], is_cue=True, is_initial=True)
            if subject and subject.kind in ("name", "group", "somebody"):
                return subject.text
            if subject and subject.text in ("我", "俺"):
                return subject.text
            return self._about(clauses(own)) or self._taking_turns(index, scene)
        if own:
            return self._about(clauses(own)) or (scene.last() if self._is_same_paragraph(index) else None)
        return self._about(clauses(tail)[:1]) or self._taking_turns(index, scene)

    def _by_cue(self, index: int, parts: list[Clause], scene: _Scene) -> str | None:
        if not parts:
            return self._taking_turns(index, scene)
        last = parts[-1].text
        verb = BEFORE.search(last)
        head = last[: verb.start()] if verb else last
        objects = self.names.objects(last)
        is_plural = bool(PLURAL.search(last))
        parts = [*parts[:-1], Clause(head, parts[-1].is_initial)]
        found, is_pronoun = self._walk(parts, objects, is_plural)
        if found is not None or is_plural:
            return found or None
        return self._going_on(index, [*parts[:-1], Clause(last, parts[-1].is_initial)], objects, scene, is_pronoun)

    def _walk(self, parts: list[Clause], objects: list[str], is_plural: bool) -> tuple[str | None, bool]:
        """Backwards from the clause that brings in a quotation to the nearest subject that fits it.

        The subject is empty where somebody comes in between whose name cannot be told.
        """
        is_pronoun, agent = False, None
        for place in range(len(parts) - 1, -1, -1):
            is_cue = place == len(parts) - 1
            clause = parts[place]
            subject = self.names.subject(clause.text, is_cue=is_cue, is_initial=clause.is_initial)
            if EACH.match(clause.text):
                is_plural = True
            if subject is None:
                continue
            if subject.kind == "stranger":
                return "", is_pronoun
            if subject.kind == "pronoun":
                if subject.text in ("我", "俺") and is_cue:
                    return subject.text, False
                is_plural = is_plural or subject.is_several
                is_pronoun = is_pronoun or not subject.is_several
            elif subject.kind == "agent":
                agent = agent or subject.text
            elif (
                (any(self._is_same(subject.text, name) for name in objects) and not is_cue)
                or (is_pronoun and subject.is_several)
                or (is_plural and not subject.is_several)
            ):
                continue
            else:
                return subject.text, is_pronoun
        return agent, is_pronoun

    def _going_on(
        self, index: int, parts: list[Clause], objects: list[str], scene: _Scene, is_pronoun: bool
    ) -> str | None:
        """Who brings in a quotation without being named since the one before."""
        last, partner = scene.last(), scene.partner()
        if sum(len(part.text) for part in parts) > _RELAYED:
            return None
        if len(parts) == 1 and not is_pronoun and _names_a_stranger(parts[0].text):
            return None
        dealt_with = [name for part in parts for name in self.names.objects(part.text)]
        is_reply = _ANSWERS.search(parts[-1].text) or (_ASKS_AGAIN.search(parts[-1].text) and not scene.has_asked)
        if is_reply or (is_pronoun and not self._is_same_paragraph(index) and len(parts) == 1):
            return partner
        if last is not None and any(self._is_same(last, name) for name in objects):
            return partner
        if last is not None and any(self._is_same(last, name) for name in dealt_with):
            return None
        return last

    def _about(self, parts: list[Clause]) -> str | None:
        """Who a passage of narration without a verb of speech is about."""
        for part in reversed(parts):
            subject = self.names.subject(part.text)
            if subject and subject.kind in ("name", "group"):
                return subject.text
        return None

    def _taking_turns(self, index: int, scene: _Scene) -> str | None:
        """Whose turn it is where nothing but quotations follow each other."""
        if self.gap(index).strip():
            return None
        candidate = scene.partner()
        if scene.addressed and scene.addressed != scene.last():
            candidate = scene.addressed
        quotation = self.quotations[index]
        addressed = self._addressed(self.text[quotation.start : quotation.end])
        if candidate is None or candidate == scene.last() or (addressed and self._is_same(addressed, candidate)):
            return None
        return candidate

    def _addressed(self, said: str) -> str | None:
        name = self.names.at(said.lstrip())
        return name if name and said.lstrip()[len(name) : len(name) + 1] in ("，", "！", "!", ",", "：", "、") else None

    def _is_same_paragraph(self, index: int) -> bool:
        if not index:
            return False
        return self.paragraphs[self.quotations[index].paragraph].start < self.quotations[index - 1].right

    def _is_same(self, name: str, other: str) -> bool:
        if name == other or (name in self.role and other in self.role):
            return True
        return min(len(name), len(other)) > 1 and (name.endswith(other) or other.endswith(name))


def _names_a_stranger(clause: str) -> bool:
    """Whether a clause begins with what is no verb and no adverb, so that somebody unknown may be meant."""
    verb = BEFORE.search(clause)
    stripped, _ = without_lead(clause[: verb.start()] if verb else clause)
    rest = without_manner(stripped)
    return len(rest) > 1 and rest[0] not in NEVER_FIRST and rest[0] not in FOLLOWS
