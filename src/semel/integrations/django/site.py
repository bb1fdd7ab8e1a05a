"""The settings of one Django project, and the engines made from them."""

from __future__ import annotations

import atexit
import difflib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.urls import get_resolver
from django.utils.module_loading import import_string

from semel.core.model import Effects
from semel.engine.state import EngineOptions
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SemelError
from semel.http.caller import Caller
from semel.http.exchange import RETRY_BYTES_MAX
from semel.http.routing import UNSAFE_METHODS
from semel.http.settings import HttpSettings
from semel.http.spelling import without_slashes
from semel.http.wsgi.threads import Threads
from semel.integrations.endpoint import DECLARED, DeclaredEndpoint, count_bulk_paths, declare_endpoint
from semel.operations.http import SyncOperations
from semel.policy import Policy
from semel.stores.sql import django as databases

APP: Final = "semel.integrations.django"
_OWN: Final = ("URL", "DATABASE", "CALLER", "TENANT", "ENGINE", "RESUMED_USER", "WAITERS_MAX", "BESIDE")


_SURFACE: Final = tuple(
    each.name.upper() for each in fields(HttpSettings) if each.init and each.name not in ("engine", "caller")
)


@dataclass(frozen=True, slots=True)
class Declared:
    """The arguments of ``@semel.command`` for a view."""

    name: str
    policy: Policy
    paths: Literal["apart", "one"] | None
    using: str


_DECLARED: Final[dict[str, Declared]] = {}  # by the views' modules, which are imported once
_PLAIN: Final[dict[int, tuple[Any, str]]] = {}  # views as they were before they were declared
BULKS: Final[list[str]] = []  # the names of lists, likewise


@dataclass(slots=True)
class ProjectStore:
    """One store of the project: its engine, its surface, and its operations by name."""

    url: str
    engine: Engine
    surface: HttpSettings
    operations: SyncOperations
    beside: tuple[str, ...] = ()  # databases that an ATOMIC view may write to beside its transaction
    declared: dict[str, DeclaredEndpoint] = field(default_factory=dict)


class Site:
    """The project's settings ``SEMEL``, read once.

    Raises ConfigurationError for an unknown setting, or an invalid one.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._lock = threading.RLock()
        self._declared = _DECLARED
        self.plain = _PLAIN
        self._places: dict[str, ProjectStore] = {}
        self._templates: dict[str, set[str]] | None = None
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"SEMEL must be a dictionary of settings; it is {given!r}")
        _check_names("SEMEL", given, (*_OWN, *_SURFACE), str.upper)
        _check_names("SEMEL['ENGINE']", given.get("ENGINE", {}), tuple(EngineOptions.__annotations__), str.lower)
        self.wrong: SemelError | None = None
        self._has_app = False
        self.database: str = given.get("DATABASE", "default")
        self._url: str | None = given.get("URL")
        self._engine_options: Mapping[str, Any] = given.get("ENGINE", {})
        self.threads = Threads(given.get("WAITERS_MAX"))
        self._options = {name.lower(): value for name, value in given.items() if name not in _OWN}
        self.asks_for_user = given.get("CALLER") is None
        self._beside = _aliases("BESIDE", given.get("BESIDE", ()))
        self._resumed_user = _function("RESUMED_USER", given.get("RESUMED_USER"))
        self._caller = _caller_of(given.get("CALLER"), given.get("TENANT", "single"))

    def check(self) -> None:
        """Raise the error of the settings, if any: requests are then refused, and no default takes their place."""
        if not self._has_app and apps.apps_ready:
            self._has_app = True
            if not apps.is_installed(APP):
                self.wrong = self.wrong or ConfigurationError(
                    f"INSTALLED_APPS lacks {APP!r}: without it manage.py makes no tables and checks nothing, and ORM "
                    "writes that would commit without their record are not refused"
                )
        if self.wrong is not None:
            raise self.wrong

    def _refuse(self, request: Any) -> Caller | None:
        self.check()
        return None

    # --- operations -------------------------------------------------------------------------------

    def declare(
        self,
        name: str,
        policy: Policy | None,
        options: Mapping[str, Any],
        *,
        paths: Literal["apart", "one"] | None,
        using: str | None,
    ) -> Declared:
        """Declare an operation. Raises PolicyError and ConfigurationError."""
        alias = using or self.database
        with self._lock:
            try:
                place = self.place(alias)
            except SemelError as error:
                if using is not None and self.wrong is None:
                    raise
                # Reported by `manage.py check`, which needs the module of the view to be importable.
                self.wrong = error
                declared = self._declared[name] = Declared(name, policy or Policy(**options), paths, alias)
                return declared
            found = declare_endpoint(
                place.engine, place.surface, name, policy, options, paths=paths, taken=(*self._declared, *BULKS)
            )
            if found.policy.terms.effects is Effects.ATOMIC:
                databases.store_url_of(alias)  # refuses what cannot be joined
                if self._url is not None and alias == self.database:
                    self._check_same(name, alias)
            declared = self._declared[name] = Declared(name, found.policy, paths, alias)
            place.declared[name] = found
            self._templates = None
            return declared

    def _check_same(self, name: str, alias: str) -> None:
        kind = str(self._url).partition(":")[0].partition("+")[0]
        vendor = databases.connection_of(alias).vendor
        if kind not in (vendor, {"postgresql": "postgres"}.get(vendor)):
            raise ConfigurationError(
                f"{name}: effects='atomic' commits the record with the rows of DATABASES[{alias!r}] ({vendor}), and "
                f"SEMEL['URL'] is a store in {kind}. Leave SEMEL['URL'] out: the store is then in that database"
            )

    @property
    def declared(self) -> Mapping[str, Declared]:
        """All operations, by name."""
        return self._declared

    @property
    def body_bytes_max(self) -> int:
        """The longest body that any operation may take."""
        sizes = [each.policy.body_bytes_max for each in self._declared.values()]
        return max([RETRY_BYTES_MAX, *sizes])

    @property
    def surface_options(self) -> dict[str, Any]:
        """A surface's options from the settings; if those are wrong, every request raises the error."""
        if self.wrong is not None:
            return {"caller": self._refuse}
        return {"caller": self._caller, **self._options}

    # --- stores -----------------------------------------------------------------------------------

    def place(self, alias: str) -> ProjectStore:
        """Read the store of a database alias from Django's current settings. Raises SemelError if they are wrong."""
        url = self.url(alias)
        found = self._places.get(alias)
        if found is not None and found.url == url:
            return found
        with self._lock:
            found = self._places.get(alias)
            if found is None or found.url != url:
                if found is not None:
                    found.engine.close()  # tests have changed the database
                self._places[alias] = found = self._make_store(alias, url)
            return found

    def url(self, alias: str) -> str:
        """Read the store's URL: SEMEL['URL'], or the database's. Raises SemelError if the settings are wrong."""
        self.check()
        if self._url is not None and alias == self.database:
            return self._url
        return databases.store_url_of(alias)

    def _make_store(self, alias: str, url: str) -> ProjectStore:
        if self._url is None or alias != self.database:
            databases.before_test_database_ends(alias, _close_all)
        engine = Engine.connect(url, **self._engine_options)
        surface = HttpSettings.of(engine, self.surface_options)
        operations = SyncOperations(surface, engine, lambda: (*self._declared, *BULKS))
        place = ProjectStore(url, engine, surface, operations, self._beside)
        for each in self._declared.values():
            if each.using == alias:
                place.declared[each.name] = declare_endpoint(
                    engine, surface, each.name, each.policy, {}, paths=each.paths, taken=()
                )
        self._templates = None
        return place

    def places(self) -> Iterator[ProjectStore]:
        """Return the stores of all operations, the project's own first."""
        return (place for _, place in self.stores())

    def stores(self) -> Iterator[tuple[str, ProjectStore]]:
        """Return the stores of :meth:`places`, each with the alias of its database."""
        for alias in dict.fromkeys([self.database, *(each.using for each in self._declared.values())]):
            yield alias, self.place(alias)

    def migrate(self, alias: str) -> list[str]:
        """Make Semel's tables in a database that holds them; return the names of the migrations that ran."""
        self.check()
        aliases = {each.using for each in self._declared.values()} | ({self.database} if self._url is None else set())
        if alias not in aliases:
            return []
        try:
            self.url(alias)
        except ConfigurationError:
            return []  # a database in memory: reported when a command meets it
        return self.place(alias).engine.migrate()

    def close(self) -> None:
        """Close every engine."""
        with self._lock:
            places, self._places = list(self._places.values()), {}
        for place in places:
            place.engine.close()

    def resumed_user(self, caller: Caller) -> Any:
        """Find the user of a request that runs without its client, by SEMEL['RESUMED_USER'] or Django's own rule."""
        self.check()
        from django.contrib.auth import get_user_model
        from django.contrib.auth.models import AnonymousUser

        found = None
        if self._resumed_user is not None:
            found = self._resumed_user(caller)
        elif self.asks_for_user and not caller.id.startswith(_OTHERS):
            found = get_user_model().objects.filter(pk=caller.id).first()
        return AnonymousUser() if found is None else found

    # --- routes -----------------------------------------------------------------------------------

    def look_at_routes(self) -> Mapping[str, set[str]]:
        """Find the templates of each operation; if several lead to one, its path counts.

        Raises ConfigurationError if a path leads to the undecorated view.
        """
        self.check()
        templates = self._templates
        if templates is None:
            with self._lock:
                found: dict[str, set[str]] = {}
                views = list(callbacks(get_resolver().url_patterns))
                _check_views(views, self.plain)
                count_bulk_paths(_functions(views))
                for template, view in views:
                    for name in names_at(view):
                        found.setdefault(name, set()).add(without_slashes(template))
                for place in self._places.values():
                    for name, each in place.declared.items():
                        if each.paths is None and len(found.get(name, ())) != 1:  # none: a decorator hides the view
                            each.route.count_path()
                templates = self._templates = found
        return templates


def _check_names(where: str, given: Mapping[str, Any], known: tuple[str, ...], spell: Callable[[str], str]) -> None:
    """Raise ConfigurationError for an unknown name, with the one that was probably meant."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(spell(str(name)), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise ConfigurationError(f"{where} has the unknown setting {name!r}{hint}")


def callbacks(patterns: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Find every view that a path leads to, with the path's template."""
    for pattern in patterns:
        template = prefix + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from callbacks(pattern.url_patterns, template)
        else:
            yield template, pattern.callback


def _check_views(found: Iterable[tuple[str, Any]], plain: Mapping[int, tuple[Any, str]]) -> None:
    for template, view in found:
        if (declared := plain.get(id(view))) is not None and declared[0] is view:
            raise ConfigurationError(
                f"the operation {declared[1]!r} is not protected: {template!r} leads to the undecorated view; "
                "route to the view that @semel.command returned"
            )


def _functions(found: Iterable[tuple[str, Any]]) -> Iterator[tuple[Any, str]]:
    """Find every view, and every method of a view class, with its template."""
    for template, view in found:
        yield view, template
        kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
        for method in UNSAFE_METHODS if kind is not None else ():
            if (function := getattr(kind, method.lower(), None)) is not None:
                yield function, template


def names_at(view: Any) -> Iterator[str]:
    """Return the operations that a view, or a method of its class, is declared as."""
    if isinstance(declared := getattr(view, DECLARED, None), Declared):
        yield declared.name
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if kind is None:
        return
    actions = getattr(view, "actions", None)  # of a view set of Django REST framework
    for method in actions.values() if isinstance(actions, Mapping) else kind.http_method_names:
        found = find_declared_in(kind, method)
        if found is not None:
            yield found.name


_CALLS: Final = {  # the methods of REST framework's own classes call another method of the class
    "post": "create",
    "put": "update",
    "patch": "partial_update",
    "partial_update": "update",
    "delete": "destroy",
}


def find_declared_in(kind: Any, name: str) -> Declared | None:
    """Find the declaration of a class's method, or of the method that REST framework's method of this name calls."""
    method = getattr(kind, name, None)
    found = find_declared(method)
    is_theirs = getattr(method, "__module__", "") in ("rest_framework.generics", "rest_framework.mixins")
    if found is None and is_theirs and name in _CALLS:
        return find_declared_in(kind, _CALLS[name])
    return found


def find_declared(method: Any) -> Declared | None:
    """Find the declaration of a class's method, even if ``@api_view`` made the class from a function."""
    inner = [cell.cell_contents for cell in getattr(method, "__closure__", None) or ()]
    for each in (method, *inner):
        if isinstance(declared := getattr(each, DECLARED, None), Declared):
            return declared
    return None


def _caller_of(given: Any, tenant: str) -> Callable[[Any], Caller | None]:
    """Choose the caller function: SEMEL['CALLER'], or one that reads Django's user."""
    if given is None:

        def from_user(request: Any) -> Caller | None:
            try:
                user = request.user
            except AttributeError:
                raise ConfigurationError(
                    "who is calling? The request has no user: put AuthenticationMiddleware into MIDDLEWARE, or name a "
                    "function of the request that returns a semel.http.Caller: SEMEL = {'CALLER': 'shop.auth.caller'}"
                ) from None
            if user is None or not user.is_authenticated:
                return None
            if user.pk is None or user.pk == "":  # a user that was never saved: all of them would be one caller
                raise ConfigurationError(
                    "who is calling? The request's user has no primary key: name a function of the request that "
                    "returns a semel.http.Caller: SEMEL = {'CALLER': 'shop.auth.caller'}"
                )
            return Caller(tenant, _id_of(user))

        from_user.__qualname__ = "request.user"  # for those who read of it
        return from_user
    caller: Callable[[Any], Caller | None] = _function("CALLER", given)
    return caller


def _function(name: str, given: Any) -> Any:
    """Read a setting that is a function, or its path; None if it is not set."""
    if isinstance(given, str):
        try:
            given = import_string(given)
        except ImportError as error:
            raise ConfigurationError(f"SEMEL[{name!r}] cannot be imported: {error}") from None
    if given is not None and not callable(given):
        what = "the request" if name == "CALLER" else "a Caller"
        raise ConfigurationError(f"SEMEL[{name!r}] must be a function of {what}, or its path; it is {given!r}")
    return given


def _aliases(name: str, given: object) -> tuple[str, ...]:
    """Read a setting that names databases. Raises ConfigurationError unless it is a list of aliases of DATABASES."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"SEMEL[{name!r}] must be a list of aliases of DATABASES; it is {given!r}")
    found = tuple(given)
    for alias in found:
        databases.connection_of(alias)
    return found


def _id_of(user: Any) -> str:
    """Return a user's unique id: the primary key, and the class unless it derives from AUTH_USER_MODEL."""
    kind = user.__class__  # of a lazy user, the class behind it
    name = settings.AUTH_USER_MODEL.lower()
    for each in kind.__mro__:
        if getattr(getattr(each, "_meta", None), "label_lower", None) == name:
            key = str(getattr(user, each._meta.pk.attname))
            return f"{_OTHERS}{name}: {key}" if key.startswith(_OTHERS) else key
    return f"{_OTHERS}{kind.__module__}.{kind.__qualname__}: {user.pk}"


_OTHERS: Final = "user of "
_SITES: Final[list[Site]] = []
_LOCK: Final = threading.Lock()


def _close_all() -> None:
    for each in _SITES:
        each.close()


atexit.register(_close_all)


def site() -> Site:
    """Return the site of this project's settings. If they are wrong, every use raises ConfigurationError."""
    if not _SITES:
        with _LOCK:
            if not _SITES:
                _SITES.append(_make_site())
    return _SITES[0]


def _make_site() -> Site:
    try:
        return Site(getattr(settings, "SEMEL", {}))
    except SemelError as error:
        made = Site({})
        made.wrong = error
        return made


def engine(using: str | None = None) -> Engine:
    """Return the engine of the project's store, or of the one in another database of Django's.

    Raises ConfigurationError.
    """
    here = site()
    return here.place(using or here.database).engine


def _change(*, setting: str, **_: Any) -> None:
    """Handle a test's override of SEMEL: keep the declarations, and read all settings again."""
    if setting == "SEMEL":
        while _SITES:
            _SITES.pop().close()


setting_changed.connect(_change)
