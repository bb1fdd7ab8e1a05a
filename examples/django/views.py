"""Lending a book is one commit with its answer; a reminder has its effect elsewhere, and is declared so."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from examples.django.models import Loan
from semel.integrations import django as semel

mails: list[str] = []  # stands for your mail provider


class LoanSerializer(serializers.ModelSerializer):  # type: ignore[misc]
    """A loan; whether the book is there is for the view to say."""

    book = serializers.IntegerField(min_value=1)

    class Meta:
        model = Loan
        fields = ("id", "book", "reader")
        read_only_fields = ("reader",)


class Loans(GenericViewSet):  # type: ignore[misc]
    """The books that are lent."""

    queryset = Loan.objects.order_by("id")
    serializer_class = LoanSerializer

    def list(self, request: Any) -> Response:
        return Response(self.get_serializer(self.get_queryset(), many=True).data)

    @semel.command("loans.lend", effects="atomic")
    def create(self, request: Any) -> Response:
        """Lend a book, once. Semel joins Django's transaction: the row and the answer are one commit."""
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        if Loan.objects.filter(book=asked.validated_data["book"]).exists():
            return Response({"error": "this book is lent"}, status=409)
        asked.save(reader=request.user.username)
        return Response(asked.data, status=201)

    @action(detail=True, methods=["post"])
    @semel.command("loans.remind", effects="external")
    def remind(self, request: Any, pk: str) -> Response:
        """Remind the reader, once."""
        mails.append(request.semel_permit.key_for("mail"))  # a key for the provider, the same in every retry
        return Response({"loan": int(pk), "mails": len(mails)}, status=202)
