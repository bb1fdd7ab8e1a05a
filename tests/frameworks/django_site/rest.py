"""Django REST framework: a view set and a function."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, generics, mixins, serializers, viewsets
from rest_framework.decorators import action, api_view
from rest_framework.response import Response

from semel.integrations import django as semel
from tests.frameworks.django_site.models import Effect
from tests.frameworks.django_site.views import answer, approvals


class EffectSerializer(serializers.ModelSerializer):  # type: ignore[misc]
    """An effect, with at least two letters."""

    what = serializers.CharField(min_length=1, max_length=20)
    do = serializers.CharField(write_only=True, required=False)

    class Meta:
        model = Effect
        fields = ("id", "what", "do")


class Effects(viewsets.GenericViewSet):  # type: ignore[misc]
    """Effects over REST framework."""

    queryset = Effect.objects.all()
    serializer_class = EffectSerializer

    def list(self, request: Any) -> Response:
        return Response(self.get_serializer(self.get_queryset(), many=True).data)

    @semel.command("rest.create", effects="atomic")
    def create(self, request: Any) -> Response:
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        if serializer.validated_data.pop("do", "") == "raise":
            serializer.save()
            raise exceptions.APIException("no")
        serializer.save()
        return Response(serializer.data, status=201, headers={"Location": f"/rest/{serializer.data['id']}/"})

    @action(detail=True, methods=["post"])
    @semel.command("rest.charge", effects="external")
    def charge(self, request: Any, pk: str) -> Response:
        effect = Effect.objects.create(what=f"charge {pk}")
        if request.data.get("do") == "raise":
            raise exceptions.APIException("the provider is away")
        return Response({"n": effect.pk, "key": request.semel_permit.key_for("charge")}, status=201)

    @action(detail=True, methods=["post"])
    @semel.command("rest.pay", effects="external", key_from="path:pk")
    def pay(self, request: Any, pk: str) -> Response:
        Effect.objects.create(what=f"pay {self.get_object().pk}")
        return Response(status=201)


class Kept(mixins.UpdateModelMixin, viewsets.GenericViewSet):  # type: ignore[misc]
    """Effects that are changed: REST framework's own ``partial_update`` calls ``update``."""

    queryset = Effect.objects.all()
    serializer_class = EffectSerializer

    @semel.command("rest.update", effects="atomic")
    def update(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().update(request, *args, **kwargs)


class Created(generics.CreateAPIView):  # type: ignore[misc]
    """REST framework's own ``post`` calls ``create``."""

    serializer_class = EffectSerializer

    @semel.command("rest.created", effects="atomic")
    def create(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().create(request, *args, **kwargs)


@transaction.non_atomic_requests(using="other")
@transaction.non_atomic_requests
@extend_schema(exclude=True)
@api_view(["POST"])
def approve(request: Any) -> Any:
    return approvals.answer(request)


@extend_schema(request=EffectSerializer, responses={201: EffectSerializer})
@api_view(["POST"])
@semel.command("rest.plain", effects="atomic")
def plain(request: Any) -> Any:
    return answer(request, request.data)
